#pragma once
// Small files written by users: settings, block patterns, measured choices.

#include <cstddef>
#include <string>

namespace ring {

// Returns the whole file without leading byte order marks. Throws Error "cannot read FILE: why" if it does not exist,
// may not be read, is larger than `max_bytes`, or is a directory, a pipe or a device.
std::string read_text_file(const std::string& file, std::size_t max_bytes);

}  // namespace ring
