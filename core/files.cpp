#include "core/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "core/interrupted.h"
#include "core/io_error.h"
#include "core/log.h"
#include "core/regular_file.h"

namespace ring {
namespace fs = std::filesystem;

namespace {

std::string folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// Returns the prefix of a temporary file's name. The process ID follows, and in unnamed_file() also a counter.
std::string temporary_prefix(const std::string& path) { return path + ".tmp."; }

// Locks an open file until its last descriptor is closed. Returns false if a different process holds the lock, or if
// the file system has no locks.
// The lock shows that the writer lives. The process ID in the name does not: processes in different containers that
// share a folder may have the same ID.
bool lock(int fd, bool wait) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return uninterrupted([&] { return ::fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &whole); }) == 0;
}

bool has_name(const FileHandle& file) {
  struct stat s {};
  return ::fstat(file.fd(), &s) == 0 && s.st_nlink > 0;
}

void sync_folder(const std::string& folder) {
  const int fd = uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) fail("cannot open ", folder, ": ", io_error_text(errno));
  const FileHandle handle(fd, folder);
  // EINVAL means that the file system cannot flush folders.
  if (uninterrupted([&] { return ::fsync(fd); }) != 0 && errno != EINVAL)
    fail("cannot flush ", folder, " to disk: ", io_error_text(errno));
}

// A locked temporary file beside its final path. It is removed unless keep() is called.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : name_(temporary_prefix(path) + std::to_string(::getpid())) {
    do {  // remove_leftovers() may remove the file before it is locked
      file_ = FileHandle(name_, O_RDWR | O_CREAT | O_EXCL);
      lock(file_.fd(), true);
    } while (!has_name(file_));
  }
  ~TemporaryFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  FileHandle& file() { return file_; }
  void keep() { name_.clear(); }

 private:
  std::string name_;
  FileHandle file_;
};

// Returns true for NAME.tmp.123 and NAME.tmp.123.word.
bool is_temporary(const std::string& name, const std::string& prefix) {
  return name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] >= '0' &&
         name[prefix.size()] <= '9';
}

}  // namespace

FileHandle::FileHandle(const std::string& path, int flags, int mode)
    : fd_(open_regular((flags & O_ACCMODE) == O_RDONLY ? "open" : "write", path, flags, mode)), path_(path) {}

FileHandle::FileHandle(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

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
  if (::fstat(fd_, &s) != 0) fail("cannot read the size of ", path_, ": ", io_error_text(errno));
  return static_cast<std::uint64_t>(s.st_size);
}

std::size_t FileHandle::read(char* into, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::read(fd_, into + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read ", path_, ": ", io_error_text(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void FileHandle::read_at(void* into, std::size_t bytes, std::uint64_t offset) const {
  char* p = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read ", path_, ": ", std::strerror(errno), " (", bytes, " bytes at offset ", offset, ")");
    if (n == 0)
      fail(path_, " is truncated: expected at least ", offset + bytes, " bytes, got ", size(),
           ". The file was truncated or replaced while in use");
    p += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void FileHandle::write(const void* from, std::size_t bytes) {
  const char* p = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write ", path_, ": ", io_error_text(errno));
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void FileHandle::write_at(const void* from, std::size_t bytes, std::uint64_t offset) {
  const char* p = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write ", path_, ": ", io_error_text(errno));
    p += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void FileHandle::sync() {
  if (uninterrupted([&] { return ::fsync(fd_); }) != 0)
    fail("cannot flush ", path_, " to disk: ", io_error_text(errno));
}

FileId file_id(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) fail("cannot read the status of ", path, ": ", io_error_text(errno));
  return {s.st_dev, s.st_ino};
}

FileHandle open_input(const std::string& path) { return {path, O_RDONLY}; }

std::string read_file(const std::string& path) {
  FileHandle file = open_input(path);
  std::string bytes(file.size(), '\0');
  bytes.resize(file.read(bytes.data(), bytes.size()));
  return bytes;
}

void check_writable(const std::string& path) {
  const std::string folder = folder_of(path);
  if (!fs::is_directory(folder))
    fail("cannot write ", path, ": the folder ", folder, " does not exist; create it first");
  if (fs::is_directory(path)) fail("cannot write ", path, ": it is a directory. Name a file instead");
  if (::access(folder.c_str(), W_OK) != 0)
    fail("cannot write ", path, ": the folder ", folder, ": ", io_error_text(errno));
}

void check_replaceable(const std::string& path) {
  std::error_code ignored;
  if (fs::is_other(path, ignored))
    fail("cannot write ", path,
         ": it is a device, a pipe or a socket, which the file would replace. Name a file instead");
}

void write_atomically(const std::string& path, const std::function<void(FileHandle&)>& write) {
  check_writable(path);
  check_replaceable(path);
  remove_leftovers(path);
  TemporaryFile temporary(path);
  write(temporary.file());
  temporary.file().sync();
  const std::string& name = temporary.file().path();
  if (::rename(name.c_str(), path.c_str()) != 0) fail("cannot rename ", name, " to ", path, ": ", io_error_text(errno));
  temporary.keep();
  sync_folder(folder_of(path));
}

std::string temporary_folder() {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error) {
    const char* named = std::getenv("TMPDIR");
    fail("TMPDIR: ", named ? named : "not set, and /tmp", ": ", io_error_text(error.value()),
         ". Set TMPDIR to a writable folder");
  }
  return folder.string();
}

FileHandle unnamed_file(const std::string& path) {
  static std::atomic<int> count{0};
  FileHandle file(temporary_prefix(path) + str(::getpid(), ".", count++), O_RDWR | O_CREAT | O_EXCL, 0600);
  ::unlink(file.path().c_str());
  return file;
}

FileHandle memory_file(const std::string& name) {
  const int fd = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0) fail("cannot create a file in memory: ", std::strerror(errno));
  return {fd, str("/proc/self/fd/", fd)};
}

void remove_leftovers(const std::string& path) {
  const std::string prefix = fs::path(temporary_prefix(path)).filename().string();
  std::error_code error;
  for (fs::directory_iterator it(folder_of(path), error), end; !error && it != end; it.increment(error)) {
    if (!is_temporary(it->path().filename().string(), prefix)) continue;
    const std::string name = it->path().string();
    // Neither follows a link nor blocks on a pipe with this name.
    const int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);  // allowed open: own
    if (fd < 0) continue;
    if (lock(fd, false) && ::unlink(name.c_str()) == 0)
      log::info("removed ", name, ", left behind by an interrupted process");
    ::close(fd);
  }
}

}  // namespace ring
