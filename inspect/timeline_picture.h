#pragma once
// Draws a ContextTimeline as SVG.

#include <string>
#include <vector>

#include "inspect/context_timeline.h"

namespace ring {

// Draws a lane for each kind of bar and one for waiting(), over an axis in ms. Bars have tooltips. lines: text below
// the title, each of about 150 characters.
std::string timeline_picture(const ContextTimeline&, const std::string& title, const std::vector<std::string>& lines);

}  // namespace ring
