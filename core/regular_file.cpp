#include "core/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/check.h"
#include "core/io_error.h"
#include "core/yaml.h"

namespace ring {
namespace {

constexpr std::size_t kShownPath = 400;  // bytes

// Returns what the file is instead of one that may be opened with these flags; null if it may.
const char* other_kind(mode_t mode, int flags) {
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
  if (path.find('\0') != std::string::npos) return refuse(EINVAL, "the name holds a NUL byte", why);
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
  while (fd < 0 && errno == EINTR);
  const int error = fd < 0 ? errno : 0;
  struct stat info {};
  // A pipe without a reader, or a socket, is refused by open(2) with a reason that does not say what it is.
  if (fd < 0) return refuse(error, ::stat(path.c_str(), &info) == 0 ? other_kind(info.st_mode, flags) : nullptr, why);
  const bool known = ::fstat(fd, &info) == 0;
  const int unknown = errno;
  const char* kind = known ? other_kind(info.st_mode, flags) : nullptr;
  if (known && !kind) return fd;
  ::close(fd);
  return refuse(known ? EINVAL : unknown, kind, why);
}

int open_regular(const char* verb, const std::string& path, int flags, int mode) {
  std::string why;
  const int fd = try_open_regular(path, flags, why, mode);
  if (fd < 0) fail("cannot ", verb, " ", shown(path, kShownPath), ": ", why);
  return fd;
}

void check_regular(const char* verb, const std::string& path, int flags) { ::close(open_regular(verb, path, flags)); }

}  // namespace ring
