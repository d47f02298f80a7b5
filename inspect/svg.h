#pragma once
// Helpers for SVG pictures.

#include <string>

namespace ring {

// Returns the start of a picture: white background and dark text, independent of the page. The caller appends
// "</svg>\n".
std::string svg_head(int width, int height, const std::string& title);

// Writes the whole file or nothing. Throws Error with the option that asked for it, the path and the reason.
void write_svg(const std::string& option, const std::string& path, const std::string& svg);
// Throws the same errors before the picture is drawn.
void check_svg_path(const std::string& option, const std::string& path);

}  // namespace ring
