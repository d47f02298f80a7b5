#pragma once
// Includes that lead back to where they began.

#include <functional>
#include <string>
#include <vector>

#include "tests/meta/source_tree.h"

namespace ring::test {

// A header and its source are one unit: "comm/store" for both.
std::string unit_of(const std::string& path);
std::string folder_of(const std::string& path);

// One line for each group of names (units, or folders) that include each other: "a b c". Only rooms count.
std::vector<std::string> include_cycles(const std::vector<SourceFile>&,
                                        const std::function<std::string(const std::string&)>& name_of);

}  // namespace ring::test
