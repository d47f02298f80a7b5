#pragma once
// Patterns of file names, as shells with globstar and Python's pathlib read them.

#include <string>
#include <string_view>

namespace ring {

// Returns whether `pattern` matches `path`, a file's path below a folder, with '/' between its parts. A pattern without
// '/' is matched against the file's name alone. `*`, `?` and `[..]` match within one part; a part `**` matches any
// number of folders, also none, and as the last part every file below.
bool glob_matches(std::string_view pattern, std::string_view path);

}  // namespace ring
