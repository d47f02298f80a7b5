#pragma once
// Draws a ContextTimeline as SVG.

#include <string>
#include <vector>

#include "inspect/context_timeline.h"

namespace ring {

// Draws a lane for each kind of bar and a lane for waiting(), over an axis in ms. Bars have tooltips. lines: text below
// the title, about 150 characters per line.
std::string timeline_picture(const ContextTimeline&, const std::string& title, const std::vector<std::string>& lines);

}  // namespace ring
