#include "cli/table.h"

#include <algorithm>
#include <iostream>

#include "cli/data_text.h"
#include "text/utf8.h"

namespace ring {
namespace {

std::size_t width_of(const std::string& text) { return static_cast<std::size_t>(utf8::count_characters(text)); }

}  // namespace

void print_table(const std::vector<std::vector<std::string>>& rows, std::size_t left_columns) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], width_of(escape_control_characters(row[i])));
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string cell = escape_control_characters(row[i]), space(widths[i] - width_of(cell), ' ');
      line += (i ? "  " : "") + (i < left_columns ? cell + space : space + cell);
    }
    std::cout << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

}  // namespace ring
