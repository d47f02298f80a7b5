#include "data/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/check.h"

namespace ring {
namespace fs = std::filesystem;

namespace {

// Removes a temporary file unless it was given its final name.
struct RemoveOnExit {
  std::string path;
  ~RemoveOnExit() {
    if (!path.empty()) ::unlink(path.c_str());
  }
};

std::string folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

}  // namespace

FileHandle::FileHandle(const std::string& path, int flags, int mode)
    : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)), path_(path) {
  if (fd_ < 0)
    fail("cannot ", (flags & O_ACCMODE) == O_RDONLY ? "open" : "write", " ", path, ": ", std::strerror(errno));
}

FileHandle::~FileHandle() { close(); }

FileHandle::FileHandle(FileHandle&& o) noexcept : fd_(std::exchange(o.fd_, -1)), path_(std::move(o.path_)) {}

FileHandle& FileHandle::operator=(FileHandle&& o) noexcept {
  close();
  fd_ = std::exchange(o.fd_, -1);
  path_ = std::move(o.path_);
  return *this;
}

void FileHandle::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::uint64_t FileHandle::size() const {
  struct stat s {};
  if (::fstat(fd_, &s) != 0) fail("cannot read the size of ", path_, ": ", std::strerror(errno));
  return static_cast<std::uint64_t>(s.st_size);
}

std::size_t FileHandle::read(char* into, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::read(fd_, into + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read ", path_, ": ", std::strerror(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void FileHandle::write(const void* from, std::size_t bytes) {
  const char* p = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write ", path_, ": ", std::strerror(errno));
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void FileHandle::write_at(const void* from, std::size_t bytes, std::uint64_t offset) {
  const char* p = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write ", path_, ": ", std::strerror(errno));
    p += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void FileHandle::sync() {
  if (::fsync(fd_) != 0) fail("cannot make ", path_, " durable: ", std::strerror(errno));
}

std::string read_file(const std::string& path) {
  if (fs::is_directory(path)) fail("cannot read ", path, ": it is a directory, a file is wanted");
  FileHandle file(path, O_RDONLY);
  std::string bytes(file.size(), '\0');
  bytes.resize(file.read(bytes.data(), bytes.size()));
  return bytes;
}

void check_writable(const std::string& path) {
  const std::string folder = folder_of(path);
  if (!fs::is_directory(folder))
    fail("cannot write ", path, ": the folder ", folder, " does not exist; create it first");
  if (fs::is_directory(path)) fail("cannot write ", path, ": it is a directory, name a file");
  if (::access(folder.c_str(), W_OK) != 0)
    fail("cannot write ", path, ": the folder ", folder, ": ", std::strerror(errno), "; change its permissions");
}

void write_atomically(const std::string& path, const std::function<void(const std::string&)>& write) {
  check_writable(path);
  RemoveOnExit temporary{path + ".tmp." + std::to_string(::getpid())};
  write(temporary.path);
  FileHandle(temporary.path, O_RDONLY).sync();
  if (::rename(temporary.path.c_str(), path.c_str()) != 0) {
    fail("cannot rename ", temporary.path, " to ", path, ": ", std::strerror(errno));
  }
  temporary.path.clear();
  FileHandle(folder_of(path), O_RDONLY | O_DIRECTORY).sync();
}

}  // namespace ring
