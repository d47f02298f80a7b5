#pragma once
// Finds cycles of includes.

#include <functional>
#include <string>
#include <vector>

#include "tests/meta/source_tree.h"

namespace ring::test {

// Returns the unit of a file. A header and its source are one unit: "comm/store" for both.
std::string unit_of(const std::string& path);
std::string folder_of(const std::string& path);

// Returns one line, such as "a b c", for each group of names (units or folders) that include each other. Only rooms
// count.
std::vector<std::string> include_cycles(const std::vector<SourceFile>&,
                                        const std::function<std::string(const std::string&)>& name_of);

}  // namespace ring::test
