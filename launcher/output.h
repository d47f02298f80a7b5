#pragma once
// What a worker writes: read without blocking, passed on line by line, and its last lines kept for when it fails.
// The error that a worker with a prefix ends with is held back, so that several can say the same once.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>

#include "core/awake_clock.h"
#include "job/socket.h"

namespace ring {

inline constexpr std::size_t kTailLines = 50;
inline constexpr const char* kErrorBegin = "ringmaster: ";  // of the message that the program ends with

class WorkerOutput {
 public:
  // prefix: written before every line; an empty one passes the bytes on as they come (a live line stays alive).
  // console: -1 to write nowhere but to the file. log_path: empty for none; Error when it cannot be opened.
  WorkerOutput(Fd read_end, std::string prefix, int console, const std::string& log_path);

  int fd() const { return source_.get(); }  // -1 once it has ended
  void drain();                             // everything that is there now
  const std::deque<std::string>& tail() const { return tail_; }
  std::string error() const;  // the last of the kept lines that begins with kErrorBegin, and those after it; or empty
  const std::string& log_path() const { return log_path_; }
  void finish();  // drains, and ends an unfinished last line

  using Clock = AwakeClock;
  bool holds() const { return !held_.empty(); }
  Clock::time_point held_since() const { return held_since_; }
  void release();  // writes what is held back to the console
  void drop() { held_.clear(); }

 private:
  void take(const char* data, std::size_t size);
  void end_line();
  void show(const std::string& text);

  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };

  Fd source_;
  std::string prefix_, line_, log_path_;
  int console_;
  bool lost_ = false;  // a line of the log file
  std::unique_ptr<std::FILE, CloseFile> log_;
  std::deque<std::string> tail_, held_;
  Clock::time_point held_since_{};
};

}  // namespace ring
