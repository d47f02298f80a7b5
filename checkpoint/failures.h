#pragma once
// How often a process that trained a run ended without being done: killed, crashed, stopped by an error. Kept in
// failures.json of the run's directory: {"failures": 2, "running": true}.

#include <cstdint>
#include <string>

namespace ring {

class Failures {
 public:
  // A process begins: where the one before did not say that it ended well, that was a failure. fresh: none counts. What
  // cannot be read or written is a warning.
  Failures(std::string file, bool fresh);
  std::int64_t count() const { return count_; }
  void ended_well();

 private:
  void write(bool running) const;

  std::string file_;
  std::int64_t count_ = 0;
};

}  // namespace ring
