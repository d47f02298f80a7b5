#pragma once

#include <string>
#include <vector>

namespace ring {

// Rows in columns that are as wide as their widest cell, to std::cout. Columns after the first `left` are flush right.
// What a terminal would act on is written out (\x1b).
void print_table(const std::vector<std::vector<std::string>>& rows, std::size_t left);

}  // namespace ring
