#pragma once
// Files that gzip or zstd compressed, read as what they hold.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ring {

enum class Packing : std::uint8_t { none, gzip, zstd };
Packing packing_of(std::string_view head);  // of a file that begins so

// The path without the ending that says how it is packed: a.jsonl of a.jsonl.gz.
std::string unpacked_name(const std::string& path);

// Calls take(block) for the bytes that the file holds, a megabyte at a time, until it returns false. Several files
// behind each other are read as one, as gunzip and unzstd do. Throws Error if the file is damaged or ends early, if a
// gzip member is followed by anything but zero bytes or a member, or if this build lacks the library.
void read_unpacked(const std::string& path, const std::function<bool(std::string_view)>& take);

}  // namespace ring
