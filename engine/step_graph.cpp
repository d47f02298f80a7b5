#include "engine/step_graph.h"

#include "core/log.h"

namespace ring {

bool StepGraph::run(const std::function<void()>& compute, const std::function<void()>& join, bool watched) {
  const std::uint64_t generation = arena_->prepare();
  if (generation != generation_) recorded_ = nullptr;  // its memory is gone
  const bool records = !recorded_ && worth_it() && clean_ == generation && clean_ != 0;
  if (!watched && (records || recorded_)) join();
  if (!watched && records) record(compute, generation);
  if (!watched && recorded_) return recorded_->launch(), true;
  {
    const StepScope repeats(*arena_);
    compute();
  }
  clean_ = arena_->planned() && arena_->from_upstream() == 0 ? generation : 0;
  return false;
}

void StepGraph::record(const std::function<void()>& compute, std::uint64_t generation) {
  {
    const StepScope repeats(*arena_);
    recorded_ = stream_.impl().record_work(compute);
  }
  generation_ = generation;
  if (recorded_ && arena_->from_upstream() > 0) recorded_ = nullptr;  // uses memory that others may get meanwhile
  if (recorded_)
    log::info("steps are replayed as a CUDA graph");
  else
    wanted_ = Switch::off;
}

void StepGraph::timed(double launch_seconds, double step_seconds) {
  const bool bound = clean_ != 0 && launch_seconds > kLaunchBound * step_seconds;  // the first steps measure and plan
  bound_steps_ = bound ? bound_steps_ + 1 : 0;
}

}  // namespace ring
