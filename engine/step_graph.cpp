#include "engine/step_graph.h"

#include "core/log.h"

namespace ring {

bool StepGraph::run(const std::function<void()>& compute, const std::function<void()>& join, bool watched) {
  exclude_host_nodes();
  const std::uint64_t generation = arena_->prepare();
  if (generation != generation_) recorded_ = nullptr;  // the memory that the recording uses is gone
  const bool records = !recorded_ && worth_it() && clean_ == generation && clean_ != 0;
  if (!watched && (records || recorded_)) join();
  if (!watched && records) record(compute, generation);
  if (!watched && recorded_) return replay(), true;
  {
    const StepScope repeats(*arena_);
    compute();
  }
  clean_ = arena_->planned() && arena_->from_upstream() == 0 ? generation : 0;
  return false;
}

// Moves the memory of work that is queued anew out of the plan, and plans again. This costs memory, so it is done only
// once steps are to be replayed.
void StepGraph::exclude_host_nodes() {
  if (!in_parts_ || !worth_it() || arena_->excludes_host_nodes()) return;
  wanted_ = Switch::on;  // keeps the decision to replay
  arena_->exclude_host_nodes();
  arena_->forget_plan();
  clean_ = 0;
}

// Work that is queued anew allocates within the step, so that the slab stays where it is, but outside the plan.
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
  if (recorded_ && arena_->from_upstream() > 0) recorded_ = nullptr;  // others may reuse memory of the recording
  if (recorded_)
    log::info("steps are replayed as ",
              in_parts_ ? "CUDA graphs, between which attention is launched" : "a CUDA graph");
  else
    wanted_ = Switch::off;
}

void StepGraph::on_step_timed(double launch_seconds, double step_seconds) {
  // The first steps measure and plan. Work that is queued anew may allocate differently in each step, so such a step is
  // never clean.
  const bool settled = in_parts_ ? arena_->planned() : clean_ != 0;
  const bool bound = settled && launch_seconds > kLaunchBound * step_seconds;
  bound_steps_ = bound ? bound_steps_ + 1 : 0;
}

}  // namespace ring
