#pragma once
// Default name of a run: the name of its folder.

#include <string>

namespace ring {

// Returns the last component of the path, even for "." or with a trailing slash; for the root, the path itself.
std::string folder_name(const std::string& path);

}  // namespace ring
