#include "trainer/memory_fallback.h"

#include <algorithm>

#include "core/counted.h"
#include "core/log.h"
#include "job/environment.h"

namespace ring {

MemoryFallback::MemoryFallback(RunContext& run) : run_(run), now_(run.start.memory) {
  now_.set_choice(run.trainer.memory());
}

void MemoryFallback::launch() try {
  run_.trainer.launch();
  record_oom_fallbacks();
} catch (const OutOfMemory&) {
  record_oom_fallbacks();
  throw;
}

std::int64_t MemoryFallback::evaluation_rows() const {
  const std::int64_t rows = loader_options(run_.config, run_.mesh).rows;
  return now_.validation_micro_batch ? std::min(rows, now_.validation_micro_batch) : rows;
}

void MemoryFallback::evaluate_with_fewer(const OutOfMemory& e) {
  const std::int64_t rows = evaluation_rows();
  const std::optional<std::int64_t> fewer = smaller_micro_batch(run_.config, run_.mesh.world(), rows);
  if (!fewer)
    throw OutOfMemory(e.facts,
                      "Validation already computes as few sequences at a time as possible. Lower model.context, set "
                      "train.mlp_chunk or a smaller train.loss_chunk_bytes, or share the model or its sequences "
                      "among more processes (parallel)");
  const std::string where = run_.trainer.arena().last_failed_scope();
  const std::string why =
      str(run_.mesh.world() > 1 ? str("rank ", run_.mesh.rank(), " ") : "", "ran out of memory in ",
          where.empty() ? "" : where + " in ", "the validation after step ", run_.trainer.steps_done(), " (", e.facts,
          "); from now on validations compute ", counted(*fewer, "sequence"), " at a time instead of ", rows);
  if (run_.mesh.world() > 1) start_again(now_.with_smaller_validation(*fewer, why));
  log::warn(why);
  take(now_.with_smaller_validation(*fewer, why));
}

void MemoryFallback::start_again(const MemoryRecord& next) const {
  try {
    write_memory_note(run_.start.dir, run_.mesh.rank(), next);
  } catch (const std::exception& problem) {
    fail(next.why, ". The smaller choice for the restart cannot be saved: ", problem.what());
  }
  const bool launched = parse_environment(current_environment()).source == "ringmaster";
  throw RestartWithLessMemory(str(next.why, launched ? "" : ". This is recorded. Run the same command again"));
}

void MemoryFallback::start_again(const RanOutOfMemory& e) const {
  start_again(now_.with_smaller_choice(e.next, e.what()));
}

// Records all new fallbacks: memory may have run out several times in this step, or in an earlier step that was
// retried.
void MemoryFallback::record_oom_fallbacks() {
  const std::vector<Trainer::OomFallback>& all = run_.trainer.oom_fallbacks();
  for (; recorded_ < all.size(); ++recorded_) take(now_.with_smaller_choice(all[recorded_].next, all[recorded_].why));
}

void MemoryFallback::take(const MemoryRecord& smaller) {
  now_ = smaller;
  if (!run_.leads()) return;
  run_.check_directory();
  write_memory(run_.start.dir, now_);
  run_.log->log_memory_shortage(now_);
  run_.time.on_out_of_memory(now_.ran_out);
}

}  // namespace ring
