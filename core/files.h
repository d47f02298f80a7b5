#pragma once
// File handles, reads of whole files, and atomic writes.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace ring {

// An owned file descriptor. Errors name the path and the reason.
class FileHandle {
 public:
  FileHandle() = default;
  FileHandle(const std::string& path, int flags, int mode = 0666);
  FileHandle(int fd, std::string path);  // takes ownership of an open descriptor
  ~FileHandle();
  FileHandle(FileHandle&& o) noexcept;
  FileHandle& operator=(FileHandle&& o) noexcept;
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  std::uint64_t size() const;
  // Returns the number of bytes read, less than `bytes` only at the end of the file.
  std::size_t read(char* into, std::size_t bytes);
  void read_at(void* into, std::size_t bytes, std::uint64_t offset) const;  // throws Error if the file ends early
  void write(const void* from, std::size_t bytes);                          // appends to what was written before
  void write_at(const void* from, std::size_t bytes, std::uint64_t offset);
  void sync();

 private:
  void close() noexcept;
  int fd_ = -1;
  std::string path_;
};

// Identifies a file by device and inode, whatever path leads to it.
using FileId = std::pair<std::uint64_t, std::uint64_t>;
FileId file_id(const std::string& path);  // throws Error if there is no such file

// Opens a regular file for reading. Throws Error if it is missing, a folder, a device or a pipe, or if the system
// refuses.
FileHandle open_input(const std::string& path);
std::string read_file(const std::string& path);  // throws the same errors as open_input()

// Throws Error, as write_atomically() does, if the folder is missing or not writable, or if `path` is a folder.
void check_writable(const std::string& path);
// Throws Error if `path` is a device, a pipe or a socket: renaming a file to `path` would replace it.
void check_replaceable(const std::string& path);

// Calls write(file) with a temporary file beside `path`, then makes it durable under its final name: fsync, rename,
// fsync of the folder. Removes the temporary file if anything fails. Throws Error if the folder is missing or not
// writable.
void write_atomically(const std::string& path, const std::function<void(FileHandle&)>& write);

// Returns the folder for temporary files: TMPDIR, or /tmp. Throws Error if it is not a folder.
std::string temporary_folder();
// Returns a file without a name on the file system of `path`. The system removes it when the handle is closed or the
// process ends.
FileHandle unnamed_file(const std::string& path);
// Returns a file in memory, which this process can open by its path. `name` appears in /proc.
FileHandle memory_file(const std::string& name);

// Removes the temporary files that killed writers of `path` left. Living writers hold a lock on theirs.
// write_atomically() calls it first.
void remove_leftovers(const std::string& path);

}  // namespace ring
