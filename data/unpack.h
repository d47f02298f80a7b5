#pragma once
// Reader of files compressed by gzip or zstd.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ring {

inline constexpr std::size_t kTextBlock = std::size_t{1} << 20;  // bytes of text per read

enum class Compression : std::uint8_t { none, gzip, zstd };
Compression compression_of(std::string_view head);  // detected from the first bytes of the file

// Returns the path without the compression ending: a.jsonl for a.jsonl.gz.
std::string unpacked_name(const std::string& path);

// Calls take(block) with the decompressed bytes, a megabyte at a time, until it returns false. Concatenated files are
// read as one, like gunzip and unzstd do. Throws Error if the file is damaged or ends early, if a gzip member is
// followed by anything but zero bytes or another member, or if this build lacks the library.
void read_unpacked(const std::string& path, const std::function<bool(std::string_view)>& take);

}  // namespace ring
