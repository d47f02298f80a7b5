#pragma once
// Counts how often a training process of a run was killed, crashed or stopped by an error. The count is stored in
// failures.json in the run's directory: {"failures": 2, "running": true}.

#include <cstdint>
#include <string>

namespace ring {

class Failures {
 public:
  // Records that a process starts, and counts a failure if the previous process did not call on_clean_end(). `reset`:
  // restarts the count at 0. Warns if the file cannot be read or written.
  Failures(std::string file, bool reset);
  std::int64_t count() const { return count_; }
  void on_clean_end();

 private:
  void write_file(bool running) const;

  std::string file_;
  std::int64_t count_ = 0;
};

}  // namespace ring
