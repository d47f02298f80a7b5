#pragma once
// Helpers for SVG pictures.

#include <string>

namespace ring {

// Returns the start of an SVG picture: white background and dark text, whatever the page's colors. The caller appends
// "</svg>\n".
std::string svg_head(int width, int height, const std::string& title);

// Writes the whole file or nothing. Throws Error with the option that asked for the file, the path and the reason.
void write_svg(const std::string& option, const std::string& path, const std::string& svg);
// Throws the errors of write_svg() that can be detected before the picture is drawn.
void check_svg_path(const std::string& option, const std::string& path);

}  // namespace ring
