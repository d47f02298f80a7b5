#include "engine/step_graph.h"

#include "core/log.h"

namespace ring {

bool StepGraph::run_or_replay(const std::function<void()>& compute, const std::function<void()>& join, bool watched) {
  exclude_host_nodes();
  const std::uint64_t generation = arena_->prepare_step();
  if (generation != generation_) recorded_ = nullptr;  // the memory that the recording uses is gone
  const bool records = !recorded_ && worth_it() && clean_ == generation && clean_ != 0;
  if (!watched && (records || recorded_)) join();
  if (!watched && records) record(compute, generation);
  if (!watched && recorded_) return replay(), true;
  {
    const StepScope repeats(*arena_);
    compute();
  }
  clean_ = arena_->has_slab() && arena_->num_upstream_blocks() == 0 ? generation : 0;
  return false;
}

// Moves the memory of host nodes (core/host_node.h) out of the memory plan, and plans again. This costs memory, so it
// is done only once steps are to be replayed.
void StepGraph::exclude_host_nodes() {
  if (!in_parts_ || !worth_it() || arena_->excludes_host_nodes()) return;
  wanted_ = Switch::on;  // keeps the decision to replay
  arena_->exclude_host_nodes();
  arena_->forget_plan();
  clean_ = 0;
}

// Launches the recording. Host nodes allocate within a step of the arena, so that the slab keeps its address. They
// allocate while the arena is paused, so that their blocks stay out of the plan.
void StepGraph::replay() {
  if (!in_parts_) return recorded_->launch();
  const StepScope step(*arena_);
  const StepPause pause(*arena_);
  recorded_->launch();
}

void StepGraph::record(const std::function<void()>& compute, std::uint64_t generation) {
  {
    const StepScope repeats(*arena_);
    recorded_ = stream_.impl().record_work(compute);
  }
  generation_ = generation;
  if (recorded_ && arena_->num_upstream_blocks() > 0) recorded_ = nullptr;  // others may reuse memory of the recording
  if (recorded_)
    log::info("steps are replayed as ",
              in_parts_ ? "CUDA graphs, between which attention is launched" : "a CUDA graph");
  else
    wanted_ = Switch::off;
}

void StepGraph::on_step_timed(double launch_seconds, double step_seconds) {
  // The first steps measure and plan memory, so their times do not count. Host nodes may allocate differently in each
  // step, so a step with host nodes is never clean: a plan is sufficient for it.
  const bool settled = in_parts_ ? arena_->has_slab() : clean_ != 0;
  const bool bound = settled && launch_seconds > kLaunchBound * step_seconds;
  bound_steps_ = bound ? bound_steps_ + 1 : 0;
}

}  // namespace ring
