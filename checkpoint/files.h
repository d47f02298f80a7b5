#pragma once
// Files that must survive a crash. Every function either does all of its work or throws an Error with the file's name
// and the system's reason. Hashes are xxh3-128 as 32 hex digits. Sizes and offsets are in bytes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

class Hasher {
 public:
  Hasher();
  ~Hasher();
  void update(const void* data, std::size_t bytes);
  std::string hex() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
std::string hash_of(std::string_view bytes);

class File {
 public:
  // read: an existing regular file. create: a new or truncated file. update: an existing file that is written to.
  // Directories, devices and pipes are rejected, without waiting for a writer of a pipe.
  enum class Mode { read, create, update };
  File(const std::filesystem::path&, Mode);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::uint64_t size() const;
  // Allocates disk space in advance, so that a full disk is detected before anything is written. Does nothing if the
  // file system does not support it.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  void read_at(std::uint64_t offset, void* data, std::size_t bytes) const;  // throws Error if the file ends early
  void resize(std::uint64_t bytes);
  void sync();
  void drop_cache() const;  // asks the system to read from the disk from now on (posix_fadvise)

 private:
  std::filesystem::path path_;
  int fd_;
};

// Makes the creation, renaming and removal of entries in `directory` durable.
void sync_directory(const std::filesystem::path& directory);

inline constexpr std::uint64_t kMaxText = std::uint64_t{256} << 20;
// Throws Error if the file is larger than max_bytes.
std::string read_text(const std::filesystem::path&, std::uint64_t max_bytes = kMaxText);
void write_text(const std::filesystem::path&, const std::string& text);  // creates or truncates the file, then syncs it
// Replaces the file by a synced temporary file. If this throws, the file is unchanged or holds all of `text`, and the
// temporary file is removed if the system allows it.
void replace_text(const std::filesystem::path&, const std::string& text);
// Renames a file, replacing an existing file `to`, and makes the rename durable.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

struct ByteRange {
  std::uint64_t offset = 0, bytes = 0;
};
struct FileHashes {
  std::uint64_t bytes = 0;
  std::string whole;
  std::vector<std::string> ranges;  // one hash per requested range
};
// Hashes the file and its ranges in one pass. Ranges must be sorted, must not overlap and must end within the file.
// `from_disk`: true to drop the page cache first.
FileHashes hash_file(const std::filesystem::path&, const std::vector<ByteRange>& ranges, bool from_disk);

}  // namespace ring
