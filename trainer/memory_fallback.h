#pragma once
// When memory runs out, switches to a choice (engine/memory_choice.h) that needs less memory, and records it
// (engine/memory_record.h).

#include "trainer/run_state.h"

namespace ring {

class MemoryFallback {
 public:
  explicit MemoryFallback(RunContext&);

  // Launches a step. Records all smaller choices that were tried, even if the launch throws because none is left.
  void launch();
  std::int64_t evaluation_rows() const;  // sequences that a validation computes at a time
  // Makes validations compute fewer sequences at a time. Between steps the memory of a step is free, so smaller steps
  // would not help. Throws OutOfMemory if there is no smaller number, and RestartWithLessMemory with several ranks.
  void evaluate_with_fewer(const OutOfMemory&);
  // Ends this process, because several ranks must restart; leaves a note with this process's choice for the restarted
  // job.
  [[noreturn]] void start_again(const MemoryRecord& next) const;
  [[noreturn]] void start_again(const RanOutOfMemory&) const;

 private:
  void record_oom_fallbacks();
  void take(const MemoryRecord& smaller);

  RunContext& run_;
  MemoryRecord& now_;
  std::size_t recorded_ = 0;  // number of the trainer's oom_fallbacks() recorded so far
};

}  // namespace ring
