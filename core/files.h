#pragma once
// Files: handles, whole reads, and writes that either happen completely or not at all.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace ring {

// A file descriptor that closes itself. Errors name the path and the reason.
class FileHandle {
 public:
  FileHandle() = default;
  FileHandle(const std::string& path, int flags, int mode = 0666);
  FileHandle(int fd, std::string path);  // takes an open one
  ~FileHandle();
  FileHandle(FileHandle&& o) noexcept;
  FileHandle& operator=(FileHandle&& o) noexcept;
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  std::uint64_t size() const;
  std::size_t read(char* into, std::size_t bytes);                          // fewer only at the end
  void read_at(void* into, std::size_t bytes, std::uint64_t offset) const;  // Error when the file ends early
  void write(const void* from, std::size_t bytes);                          // at the end of what was written before
  void write_at(const void* from, std::size_t bytes, std::uint64_t offset);
  void sync();

 private:
  void close() noexcept;
  int fd_ = -1;
  std::string path_;
};

// Identifies a file whatever names lead to it.
using FileId = std::pair<std::uint64_t, std::uint64_t>;  // device and inode
FileId file_id(const std::string& path);                 // Throws Error if there is no such file

// A regular file, to be read. Error: it is missing, a folder, a device or a pipe, or the system refuses.
FileHandle open_input(const std::string& path);
std::string read_file(const std::string& path);  // the same errors

// Error, as write_atomically's: the folder is missing or not writable, or a folder has that name.
void check_writable(const std::string& path);

// Calls write(file) with a temporary file beside `path`, then makes it durable and gives it its name: fsync, rename,
// fsync of the folder. The temporary file goes when anything fails. Error: the folder is missing or not writable.
void write_atomically(const std::string& path, const std::function<void(FileHandle&)>& write);

// A file without a name, on the file system of `path`: it goes with its handle, and with the process.
FileHandle unnamed_file(const std::string& path);
// A file in memory; its path can be opened by this process. `name` is for those who look at /proc.
FileHandle memory_file(const std::string& name);

// Removes what writers of `path` left who were killed: their temporary files, which a living writer holds a lock on.
// write_atomically() begins with it.
void remove_leftovers(const std::string& path);

}  // namespace ring
