#include "core/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/check.h"
#include "core/interrupted.h"
#include "core/io_error.h"
#include "core/yaml.h"

namespace ring {
namespace {

constexpr std::size_t kMaxShownPath = 400;  // bytes

// Returns why a file of this mode may not be opened with these flags; null if it may.
const char* forbidden_kind(mode_t mode, int flags) {
  if (S_ISREG(mode)) return nullptr;
  if (S_ISCHR(mode) && (flags & O_ACCMODE) == O_WRONLY) return nullptr;
  if (S_ISDIR(mode)) return "it is a directory, not a file";
  if (S_ISFIFO(mode)) return "it is a named pipe, not a file";
  if (S_ISSOCK(mode)) return "it is a socket, not a file";
  return "it is a device, not a file";
}

int refuse(int error, const char* kind, std::string& why) {
  why = kind ? kind : io_error_text(error);
  errno = error;
  return -1;
}

}  // namespace

int try_open_regular(const std::string& path, int flags, std::string& why, int mode) {
  if (path.find('\0') != std::string::npos) return refuse(EINVAL, "the name contains a NUL byte", why);
  const int fd = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode); });
  const int error = fd < 0 ? errno : 0;
  struct stat info {};
  // open(2) refuses a pipe without a reader, or a socket, with an errno that does not say what the file is.
  if (fd < 0)
    return refuse(error, ::stat(path.c_str(), &info) == 0 ? forbidden_kind(info.st_mode, flags) : nullptr, why);
  const bool has_info = ::fstat(fd, &info) == 0;
  const int fstat_error = errno;
  const char* kind = has_info ? forbidden_kind(info.st_mode, flags) : nullptr;
  if (has_info && !kind) return fd;
  ::close(fd);
  return refuse(has_info ? EINVAL : fstat_error, kind, why);
}

int open_regular(const char* verb, const std::string& path, int flags, int mode) {
  std::string why;
  const int fd = try_open_regular(path, flags, why, mode);
  if (fd < 0) fail("cannot ", verb, " ", shown(path, kMaxShownPath), ": ", why);
  return fd;
}

void check_regular(const char* verb, const std::string& path, int flags) { ::close(open_regular(verb, path, flags)); }

}  // namespace ring
