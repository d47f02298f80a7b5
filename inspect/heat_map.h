#pragma once
// Draws tables of shares over two dimensions, as text or as a picture.

#include <string>
#include <vector>

namespace ring {

struct HeatMap {
  std::string title, column_title, row_title;
  std::vector<std::string> columns, rows;
  std::vector<std::vector<double>> shares;  // [rows][columns], each in [0, 1]
};

std::string heat_map_text(const HeatMap&);
// Draws the maps below each other.
std::string heat_map_svg(const std::vector<HeatMap>& maps);

}  // namespace ring
