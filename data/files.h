#pragma once
// Small file helpers: whole reads, and writes that either happen completely or not at all.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ring {

std::string read_file(const std::string& path);  // Error names the path and the reason

// Error, as write_atomically's: the folder is missing or not writable, or a folder has that name.
void check_writable(const std::string& path);

// Calls write(temporary path), then makes the file durable and gives it its name: fsync, rename, fsync of the folder.
// The temporary file goes when anything fails. Error: the folder is missing or not writable.
void write_atomically(const std::string& path, const std::function<void(const std::string& temporary)>& write);

// A file descriptor that closes itself.
class FileHandle {
 public:
  FileHandle() = default;
  FileHandle(const std::string& path, int flags, int mode = 0644);  // Error names the path and the reason
  ~FileHandle();
  FileHandle(FileHandle&& o) noexcept;
  FileHandle& operator=(FileHandle&& o) noexcept;
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  std::uint64_t size() const;
  std::size_t read(char* into, std::size_t bytes);  // fewer only at the end
  void write(const void* from, std::size_t bytes);  // at the end of what was written before
  void write_at(const void* from, std::size_t bytes, std::uint64_t offset);
  void sync();

 private:
  void close() noexcept;
  int fd_ = -1;
  std::string path_;
};

}  // namespace ring
