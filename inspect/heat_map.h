#pragma once
// Tables of shares by two dimensions, as text and as a picture.

#include <string>
#include <vector>

namespace ring {

struct HeatMap {
  std::string title, column_title, row_title;
  std::vector<std::string> columns, rows;   // labels
  std::vector<std::vector<double>> shares;  // [rows][columns], from 0 to 1
};

std::string heat_map_text(const HeatMap&);
// One below the other.
std::string heat_map_svg(const std::vector<HeatMap>&);

}  // namespace ring
