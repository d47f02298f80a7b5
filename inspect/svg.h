#pragma once
// What pictures in SVG share.

#include <string>

namespace ring {

// The head of a picture on white ground, with dark text, whatever the page around it is. "</svg>\n" ends it.
std::string svg_head(int width, int height, const std::string& title);

// Writes the whole file or nothing. Error names the option that asked for it, the path and the reason.
void write_svg(const std::string& option, const std::string& path, const std::string& svg);
void check_svg_path(const std::string& option, const std::string& path);  // the same errors, before there is a picture

}  // namespace ring
