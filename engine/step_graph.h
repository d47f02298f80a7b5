#pragma once
// Replays the computation of a step as a CUDA graph, for models so small that the host launches kernels more slowly
// than the device runs them. A recording stays valid because the step's memory has fixed addresses (core/step_arena.h)
// and all values that change between steps are read from device memory. Work that a graph cannot contain becomes a host
// node (core/host_node.h): the host queues it again in each step, between the graphs of the remaining work, with memory
// outside the step's plan.

#include <functional>
#include <memory>

#include "core/step_arena.h"
#include "core/stream.h"
#include "engine/config.h"

namespace ring {

class StepGraph {
 public:
  // in_parts: true if the step contains host nodes (core/host_node.h), so that it is recorded as several graphs.
  StepGraph(Switch wanted, const Stream& stream, std::shared_ptr<StepArena> arena, bool in_parts = false)
      : wanted_(wanted), stream_(stream), arena_(std::move(arena)), in_parts_(in_parts) {}

  // Queues `compute`: replays it if there is a valid recording, otherwise calls it. join: makes the stream wait for
  // work of earlier steps on other streams; called before recording or replay, because neither a recording nor a replay
  // can wait for that work. watched: always calls `compute`, so that an observer sees each kernel. Returns true if the
  // step was replayed.
  bool run_or_replay(const std::function<void()>& compute, const std::function<void()>& join, bool watched = false);
  // Returns true if run_or_replay() is likely to record or replay the next step. With several processes, set `watched`
  // in run() unless ready() is true on all of them.
  bool ready() const { return arena_->has_slab() && (recorded_ || (worth_it() && clean_ != 0)); }
  // Reports the time that the host took to queue a step and the time that the step took. Switch::automatic decides by
  // these times.
  void on_step_timed(double launch_seconds, double step_seconds);
  bool replays() const { return recorded_ != nullptr; }
  void forget() { recorded_ = nullptr, clean_ = 0; }  // call if `compute` has changed

 private:
  bool worth_it() const { return wanted_ == Switch::on || (wanted_ == Switch::automatic && bound_steps_ >= kDecided); }
  void exclude_host_nodes();
  void record(const std::function<void()>& compute, std::uint64_t generation);
  void replay();

  static constexpr int kDecided = 3;  // number of consecutive launch-bound steps before recording
  // A step is launch-bound if queueing takes more than this share of the step's time.
  static constexpr double kLaunchBound = 0.7;

  Switch wanted_;
  Stream stream_;
  std::shared_ptr<StepArena> arena_;
  const bool in_parts_;
  std::unique_ptr<RecordedWork> recorded_;
  std::uint64_t generation_ = 0;  // generation of the memory that the recording uses
  // Generation of the memory if the whole last computed step got its memory from the slab; else 0.
  std::uint64_t clean_ = 0;
  int bound_steps_ = 0;
};

}  // namespace ring
