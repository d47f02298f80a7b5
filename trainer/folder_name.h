#pragma once
// The name of a run that has none but its folder's.

#include <string>

namespace ring {

// Also of "." and of a path that ends with a slash; of the root the path itself.
std::string folder_name(const std::string& path);

}  // namespace ring
