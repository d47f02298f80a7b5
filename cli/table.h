#pragma once

#include <string>
#include <vector>

namespace ring {

// Prints rows to std::cout in columns as wide as their widest cell, right-aligned except for the first `left_columns`
// columns. Escapes control characters (\x1b).
void print_table(const std::vector<std::vector<std::string>>& rows, std::size_t left_columns);

}  // namespace ring
