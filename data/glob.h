#pragma once
// Matches file name patterns, like shells with globstar and Python's pathlib.

#include <string>
#include <string_view>

namespace ring {

// Returns true if `pattern` matches `path`, the path of a file relative to a folder, with '/' between components. A
// pattern without '/' is matched only against the file name. `*`, `?` and `[..]` match within one component. A
// component `**` matches any number of folders, including none, and as the last component every file below.
bool glob_matches(std::string_view pattern, std::string_view path);

}  // namespace ring
