#pragma once
// Small files that people write: settings, block patterns, measured choices.

#include <cstddef>
#include <string>

namespace ring {

// Returns the whole file without byte order marks in front. Error, "cannot read FILE: why": it does not exist, may not
// be read, is larger than `most` bytes, or is a directory, a pipe or a device, which may never end.
std::string read_text_file(const std::string& file, std::size_t most);

}  // namespace ring
