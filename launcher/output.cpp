#include "launcher/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "core/regular_file.h"

namespace ring {
namespace {

constexpr std::size_t kMaxLine = 4096;  // in bytes; longer lines are split

// Ignores errors: a closed console must not end the run.
void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
}

}  // namespace

WorkerOutput::WorkerOutput(Fd read_end, std::string prefix, int console_fd, const std::string& log_path)
    : source_(std::move(read_end)), prefix_(std::move(prefix)), log_path_(log_path), console_(console_fd) {
  if (log_path.empty()) return;
  const int fd = open_regular("open the log file", log_path, O_WRONLY | O_CREAT | O_APPEND);
  log_.reset(fdopen(fd, "a"));
  RING_CHECK(log_, "fdopen: ", std::strerror(errno));
  setvbuf(log_.get(), nullptr, _IOLBF, BUFSIZ);
}

void WorkerOutput::drain() {
  char buffer[16384];
  while (source_) {
    const ssize_t n = read(source_.get(), buffer, sizeof buffer);
    if (n > 0)
      append(buffer, static_cast<std::size_t>(n));
    else if (n < 0 && errno == EINTR)
      continue;
    else if (n < 0 && errno == EAGAIN)
      return;
    else
      source_.reset();
  }
}

void WorkerOutput::append(const char* data, std::size_t size) {
  if (console_ >= 0 && prefix_.empty()) write_all(console_, data, size);
  if (log_ && std::fwrite(data, 1, size, log_.get()) != size && !std::exchange(lost_, true))
    log::warn("launch: cannot write ", log_path_, ": ", std::strerror(errno), "; the workers continue");
  for (const char* end = data + size; data != end; ++data) {
    if (*data == '\n')
      end_line();
    else if (*data == '\r')
      line_.clear();  // a carriage return restarts a progress line
    else
      line_ += *data;
    if (line_.size() >= kMaxLine) end_line();
  }
}

void WorkerOutput::end_line() {
  if (console_ >= 0 && !prefix_.empty()) {
    const bool named = line_.find(prefix_) != std::string::npos;  // true for a log line that already names its rank
    write_line((named ? "" : prefix_) + line_ + "\n");
  }
  tail_.push_back(std::exchange(line_, {}));
  if (tail_.size() > kTailLines) tail_.pop_front();
}

void WorkerOutput::write_line(const std::string& text) {
  if (!holds_lines() && !line_.starts_with(kErrorBegin)) return write_all(console_, text.data(), text.size());
  if (!holds_lines()) held_since_ = Clock::now();
  held_.push_back(text);
  if (held_.size() > kTailLines) write_held_lines();  // a final error has fewer lines, so the worker continues
}

void WorkerOutput::write_held_lines() {
  for (const std::string& text : held_) write_all(console_, text.data(), text.size());
  held_.clear();
}

std::string WorkerOutput::error_text() const {
  const auto begin =
      std::find_if(tail_.rbegin(), tail_.rend(), [](const std::string& l) { return l.starts_with(kErrorBegin); });
  std::string text;
  if (begin != tail_.rend())
    for (auto line = std::prev(begin.base()); line != tail_.end(); ++line) text += *line + "\n";
  return text;
}

void WorkerOutput::finish() {
  drain();
  if (!line_.empty()) end_line();
  if (log_) std::fflush(log_.get());
}

}  // namespace ring
