#pragma once
// Files that must survive a crash. Every call does all of its work or throws an Error that names the file and the
// system's reason. Hashes are xxh3-128 as 32 hex digits. Sizes and offsets are in bytes.

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
  // read: a regular file. A pipe is refused with its name and not waited for, a directory or device likewise.
  enum class Mode { read, create, update };
  File(const std::filesystem::path&, Mode);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::uint64_t size() const;
  // Takes the space on the disk now, so that a full one is found before anything is written.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  void read_at(std::uint64_t offset, void* data, std::size_t bytes) const;  // Error when the file ends early
  void resize(std::uint64_t bytes);
  void sync();
  void drop_cache() const;  // later reads come from the disk, as far as the system follows the advice

 private:
  std::filesystem::path path_;
  int fd_;
};

// Makes names created, renamed or removed in `directory` durable.
void sync_directory(const std::filesystem::path& directory);

inline constexpr std::uint64_t kMostText = std::uint64_t{256} << 20;
std::string read_text(const std::filesystem::path&, std::uint64_t most_bytes = kMostText);  // Error: it is larger
void write_text(const std::filesystem::path&, const std::string& text);                     // a new file, synced
// Writes the file by way of a synced temporary one. If it throws, the file is as it was or holds all of `text`, and the
// temporary file is removed as far as the system allows.
void replace_text(const std::filesystem::path&, const std::string& text);
// Renames a file, replacing one that is there, and makes that durable.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

struct ByteRange {
  std::uint64_t offset = 0, bytes = 0;
};
struct FileHashes {
  std::uint64_t bytes = 0;
  std::string whole;
  std::vector<std::string> ranges;  // one for each asked
};
// One pass over the file. `ranges` ascend, do not overlap and end within the file.
FileHashes hash_file(const std::filesystem::path&, const std::vector<ByteRange>& ranges, bool from_disk);

}  // namespace ring
