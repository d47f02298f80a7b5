#pragma once
// Matching of file name patterns, as in shells with globstar and Python's pathlib.

#include <string>
#include <string_view>

namespace ring {

// Returns true if `pattern` matches `path`, a file's path relative to a folder, with '/' between components. A pattern
// without '/' is matched against the file name only. `*`, `?` and `[..]` match within one component; a component `**`
// matches any number of folders, including none, and as the last component every file below.
bool glob_matches(std::string_view pattern, std::string_view path);

}  // namespace ring
