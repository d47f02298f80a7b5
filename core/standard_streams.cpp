#include "core/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

#include "core/byte_order_mark.h"
#include "core/check.h"

namespace ring {
namespace {

// Writes to a descriptor: on a terminal after each line, elsewhere when the buffer is full or flushed.
class OutputBuffer final : public std::streambuf {
 public:
  explicit OutputBuffer(int fd) : fd_(fd), line_buffered_(isatty(fd) == 1) { clear(); }
  int error() const { return error_; }  // errno of the first failed write, after which nothing is written

 protected:
  int_type overflow(int_type c) override {
    write_all();
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    *pptr() = traits_type::to_char_type(c);
    pbump(1);
    if (line_buffered_ && c == '\n') write_all();
    return c;
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::streamsize put = std::streambuf::xsputn(text, size);
    if (line_buffered_ && std::memchr(text, '\n', static_cast<std::size_t>(size))) write_all();
    return put;
  }
  int sync() override { return write_all(), 0; }

 private:
  void clear() { setp(buffer_.data(), buffer_.data() + buffer_.size()); }
  void write_all() {
    const char* from = pbase();
    while (!error_ && from < pptr()) {
      const ssize_t n = write(fd_, from, static_cast<std::size_t>(pptr() - from));
      if (n > 0) from += n;
      if (n < 0 && errno != EINTR) error_ = errno;
    }
    clear();
    // A stream catches this error and sets badbit; if its exceptions() include badbit, it throws the error again.
    if (error_) fail("cannot write to standard output: ", std::strerror(error_));
  }

  int fd_, error_ = 0;
  bool line_buffered_;
  std::array<char, 16384> buffer_;
};

OutputBuffer& progress_buffer() {
  static OutputBuffer buffer(STDOUT_FILENO);
  return buffer;
}

}  // namespace

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    // The wrong direction on purpose: every use fails. open() returns the lowest free descriptor, which is fd.
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

StandardOutput::StandardOutput()
    : buffer_(std::make_unique<OutputBuffer>(STDOUT_FILENO)),
      original_(std::cout.rdbuf(buffer_.get())),
      quiet_(buffer_.get()) {
  std::cout.exceptions(std::ios::badbit);
  // Not tied to std::cout itself, whose flush would throw from inside a write to std::cerr.
  std::cerr.tie(&quiet_);
}

StandardOutput::~StandardOutput() {
  std::cerr.tie(&std::cout);
  std::cout.exceptions(std::ios::goodbit);
  std::cout.rdbuf(original_);
}

void StandardOutput::finish() { buffer_->pubsync(); }

std::ostream& progress_output() {
  static std::ostream stream(&progress_buffer());
  return stream;
}

std::string lost_output_reason(const std::ostream& progress) {
  if (progress) return "";
  const OutputBuffer& buffer = progress_buffer();  // `progress` may write elsewhere; only this buffer has an errno
  return progress.rdbuf() == &buffer && buffer.error() ? std::strerror(buffer.error()) : "a write failed";
}

std::string read_standard_input() {
  std::string text;
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t n = read(STDIN_FILENO, part.data(), part.size());
    if (n == 0) return std::string(without_byte_order_marks(text));
    if (n > 0) text.append(part.data(), static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) fail("cannot read standard input: ", std::strerror(errno));
  }
}

}  // namespace ring
