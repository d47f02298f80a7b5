#include "core/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/io_error.h"
#include "core/regular_file.h"
#include "core/yaml.h"

namespace ring {
namespace {

// A file that is open for reading.
class OpenFile {
 public:
  explicit OpenFile(const std::string& name) : name_(name) {
    std::string why;
    fd_ = try_open_regular(name, O_RDONLY, why);
    if (fd_ >= 0) return;
    if (errno == ENOENT) refuse("it does not exist");
    if (errno == EACCES) refuse("permission denied");
    refuse(why);
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    fail("cannot read ", shown(name_, 400), ": ", why...);
  }

  // Reads `count` bytes, or fewer at the end of the file.
  std::string read(std::size_t count) const {
    std::string text(count, '\0');
    std::size_t filled = 0;
    while (filled < count) {
      const ssize_t n = ::read(fd_, text.data() + filled, count - filled);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) refuse(io_error_text(errno));
      if (n == 0) break;
      filled += static_cast<std::size_t>(n);
    }
    text.resize(filled);
    return text;
  }

 private:
  const std::string& name_;
  int fd_;
};

}  // namespace

std::string read_text_file(const std::string& file, std::size_t max_bytes) {
  const OpenFile in(file);
  std::string text = in.read(max_bytes + 1);
  if (text.size() > max_bytes) in.refuse("it is larger than ", max_bytes, " bytes, the limit for such a file");
  return std::string(without_byte_order_marks(text));
}

}  // namespace ring
