#pragma once
// A picture of a ContextTimeline, as SVG.

#include <string>
#include <vector>

#include "inspect/context_timeline.h"

namespace ring {

// A lane for each kind of bar and one for waiting(), over an axis in ms. Bars say what they are under the mouse.
// lines: below the title, of about 150 characters.
std::string timeline_picture(const ContextTimeline&, const std::string& title, const std::vector<std::string>& lines);

}  // namespace ring
