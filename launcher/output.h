#pragma once
// What a worker writes: read without blocking, passed on line by line, and its last lines kept for when it fails.

#include <cstddef>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>

#include "comm/socket.h"

namespace ring {

inline constexpr std::size_t kTailLines = 30;

class WorkerOutput {
 public:
  // prefix: written before every line; an empty one passes the bytes on as they come (a live line stays alive).
  // console: -1 to write nowhere but to the file. log_path: empty for none; Error when it cannot be opened.
  WorkerOutput(Fd read_end, std::string prefix, int console, const std::string& log_path);

  int fd() const { return source_.get(); }  // -1 once it has ended
  void drain();                             // everything that is there now
  const std::deque<std::string>& tail() const { return tail_; }
  const std::string& log_path() const { return log_path_; }
  void finish();  // drains, and ends an unfinished last line

 private:
  void take(const char* data, std::size_t size);
  void end_line();

  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };

  Fd source_;
  std::string prefix_, line_, log_path_;
  int console_;
  std::unique_ptr<std::FILE, CloseFile> log_;
  std::deque<std::string> tail_;
};

}  // namespace ring
