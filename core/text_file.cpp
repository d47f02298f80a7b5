#include "core/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/check.h"
#include "core/io_error.h"
#include "core/yaml.h"

namespace ring {
namespace {

// Opened for reading, and closed with its owner.
class OpenFile {
 public:
  explicit OpenFile(const std::string& name) : name_(name) {
    if (name.find('\0') != std::string::npos) refuse("the name holds a NUL byte");
    // A pipe that nobody writes to would hold up a plain open.
    fd_ = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) refuse_errno();
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    fail("cannot read ", shown(name_, 400), ": ", why...);
  }

  void check_kind() const {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) refuse_errno();
    if (S_ISDIR(info.st_mode)) refuse("it is a directory");
    if (S_ISFIFO(info.st_mode)) refuse("it is a pipe, which may never end: write a file");
    if (!S_ISREG(info.st_mode)) refuse("it is a device or a socket, not a file");
  }

  // As many bytes as are left, at most `count`.
  std::string read(std::size_t count) const {
    std::string text(count, '\0');
    std::size_t filled = 0;
    while (filled < count) {
      const ssize_t n = ::read(fd_, text.data() + filled, count - filled);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) refuse_errno();
      if (n == 0) break;
      filled += static_cast<std::size_t>(n);
    }
    text.resize(filled);
    return text;
  }

 private:
  [[noreturn]] void refuse_errno() const {
    const int error = errno;
    if (error == ENOENT) refuse("it does not exist");
    if (error == EACCES) refuse("permission denied");
    refuse(io_error_text(error));
  }

  const std::string& name_;
  int fd_;
};

}  // namespace

std::string read_text_file(const std::string& file, std::size_t most) {
  const OpenFile in(file);
  in.check_kind();
  std::string text = in.read(most + 1);
  if (text.size() > most) in.refuse("it is larger than ", most, " bytes, which is all that such a file may have");
  return text;
}

}  // namespace ring
