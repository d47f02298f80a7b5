#pragma once
// Reads a worker's output without blocking, forwards it line by line, and keeps the last lines in case the worker
// fails. If the worker has a prefix, its final error message is held back, so that an error of several workers can be
// shown once.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "core/awake_clock.h"
#include "job/socket.h"

namespace ring {

inline constexpr std::size_t kTailLines = 50;
inline constexpr const char* kErrorBegin = "ringmaster: ";  // prefix of the program's final error message

class WorkerOutput {
 public:
  // prefix: written before every line; if empty, bytes are forwarded unchanged (a progress line stays live).
  // console_fd: file descriptor, or -1 to write only to the file. log_path: empty for no log file; throws Error if it
  // cannot be opened.
  WorkerOutput(Fd read_end, std::string prefix, int console_fd, const std::string& log_path);

  int fd() const { return source_.get(); }  // -1 once the output has ended
  void drain();                             // reads everything that is available now
  const std::deque<std::string>& tail() const { return tail_; }
  // Returns the last line of tail() that begins with kErrorBegin, and all lines after it; empty if there is none.
  std::string error_text() const;
  const std::string& log_path() const { return log_path_; }
  void set_console(int console_fd, std::string prefix) { console_ = console_fd, prefix_ = std::move(prefix); }
  void finish();  // drains the output, and completes an unfinished last line

  using Clock = AwakeClock;
  bool holds_lines() const { return !held_.empty(); }
  Clock::time_point held_since() const { return held_since_; }
  void write_held_lines();  // writes the held lines to the console
  void drop_held_lines() { held_.clear(); }

 private:
  void append(const char* data, std::size_t size);
  void end_line();
  void write_line(const std::string& text);

  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };

  Fd source_;
  std::string prefix_, line_, log_path_;
  int console_;
  bool lost_ = false;  // true once writing to the log file has failed
  std::unique_ptr<std::FILE, CloseFile> log_;
  std::deque<std::string> tail_, held_;
  Clock::time_point held_since_{};
};

}  // namespace ring
