#pragma once
// Replays the computation of a step as a CUDA graph: for models so small that the host launches kernels slower than the
// device runs them. The step's memory has fixed places (core/step_arena.h) and everything that changes from step to
// step is read from device memory, so that the recording stays valid. What cannot be, the host queues anew in each
// step, with memory of its own, between graphs of the rest (core/queue_anew.h).

#include <functional>
#include <memory>

#include "core/step_arena.h"
#include "core/stream.h"
#include "engine/config.h"

namespace ring {

class StepGraph {
 public:
  // in_parts: the step has work that is queued anew.
  StepGraph(Switch wanted, const Stream& stream, std::shared_ptr<StepArena> arena, bool in_parts = false)
      : wanted_(wanted), stream_(stream), arena_(std::move(arena)), in_parts_(in_parts) {}

  // Queues `compute`: by a replay where there is a valid recording, else by calling it. join: makes the stream wait for
  // what other streams still do for the steps so far; called ahead of a recording or a replay, which cannot wait for
  // it. watched: always by calling it, for those who want to see each kernel. Returns whether it was replayed.
  bool run(const std::function<void()>& compute, const std::function<void()>& join, bool watched = false);
  // run() is likely to record or to replay the next step. Among several processes it is to be watched unless all are.
  bool ready() const { return arena_->planned() && (recorded_ || (worth_it() && clean_ != 0)); }
  // How long the host took to queue a step and how long the step took: decides where it is left to `auto`.
  void timed(double launch_seconds, double step_seconds);
  bool replays() const { return recorded_ != nullptr; }
  void forget() { recorded_ = nullptr, clean_ = 0; }  // what `compute` does has changed

 private:
  bool worth_it() const { return wanted_ == Switch::on || (wanted_ == Switch::automatic && bound_steps_ >= kDecided); }
  void set_apart();
  void record(const std::function<void()>& compute, std::uint64_t generation);
  void replay();

  static constexpr int kDecided = 3;           // steps in a row
  static constexpr double kLaunchBound = 0.7;  // of the step

  Switch wanted_;
  Stream stream_;
  std::shared_ptr<StepArena> arena_;
  const bool in_parts_;
  std::unique_ptr<RecordedWork> recorded_;
  std::uint64_t generation_ = 0;  // of the recording's memory
  std::uint64_t clean_ = 0;       // the generation in which a whole step had all of its memory in the slab
  int bound_steps_ = 0;
};

}  // namespace ring
