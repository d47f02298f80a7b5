#include "trainer/bad_steps.h"

#include <cmath>

#include "checkpoint/reader.h"
#include "core/counted.h"
#include "core/log.h"
#include "trainer/run_start.h"

namespace ring {
namespace {

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

std::string samples_text(std::int64_t first, std::int64_t end) { return str("samples ", first, " to ", end - 1); }

}  // namespace

StepReport BadSteps::recompute_step(const StepReport& first) {
  if (!config_.run.deterministic) return first;
  const StepReport again = trainer_.step();
  if (trainer_.leads_island() && !(same(first.loss, again.loss) && same(first.norm, again.norm)))
    log::error("step ", trainer_.steps_done() + !again.accepted,
               " gave different results when computed twice from the same weights and samples: ", "loss ", first.loss,
               " and ", again.loss, ", gradient norm ", first.norm, " and ", again.norm,
               ". A device or its memory is faulty. Look for errors with nvidia-smi -q -d ECC and dmesg");
  return again;
}

bool BadSteps::skip_or_roll_back(const StepReport& r, bool has_checkpoint) {
  StepGuard& guard = trainer_.guard();
  BadStep bad{.step = trainer_.steps_done() + 1, .loss = r.loss, .norm = r.norm};
  const OnBadStep action = guard.action_for_bad_step(bad.step);
  if (action == OnBadStep::stop) stop(r, has_checkpoint);
  const std::int64_t end = trainer_.next_sample() + trainer_.next_batch_size();
  const std::string checkpoint = action == OnBadStep::rollback ? find_newest_checkpoint(dir_, mesh_) : "";
  if (!checkpoint.empty()) roll_back(checkpoint);
  bad.first_sample = trainer_.next_sample();
  bad.end_sample = end;
  guard.add_bad_step(bad);
  trainer_.skip_to(end);
  if (mesh_.rank() == 0)
    log::warn("step ", bad.step, ": loss ", bad.loss, ", gradient norm ", bad.norm, ". Skipping ",
              samples_text(bad.first_sample, end), ", continuing from step ", trainer_.steps_done());
  return !checkpoint.empty();
}

void BadSteps::pass_over(StepReport& r, bool has_checkpoint) {
  StepGuard& guard = trainer_.guard();
  BadStep bad{.step = trainer_.steps_done() + 1, .loss = r.loss, .norm = r.norm};
  if (guard.action_for_bad_step(bad.step) == OnBadStep::stop) stop(r, has_checkpoint);
  bad.first_sample = trainer_.next_sample();
  trainer_.pass_over_step(r);
  bad.end_sample = trainer_.next_sample();
  guard.add_bad_step(bad);
  if (trainer_.leads_island())
    log::warn("step ", bad.step, " of island ", mesh_.coord("island"), ": loss ", bad.loss, ", gradient norm ",
              bad.norm, ". The island skips its share of ", samples_text(bad.first_sample, bad.end_sample),
              ". Its weights stay as they are");
}

void BadSteps::roll_back(const std::string& checkpoint) {
  const std::vector<BadStep> known = trainer_.guard().bad_steps();
  load_state(checkpoint, state_, trainer_.exec().stream);
  trainer_.on_state_loaded();
  trainer_.guard().on_rollback(known);
}

void BadSteps::stop(const StepReport& r, bool has_checkpoint) {
  const std::string what = str("training stopped: loss ", r.loss, ", gradient norm ", r.norm, " at ");
  const std::size_t before = trainer_.guard().bad_steps().size();
  const std::string then =
      str(". Weights are unchanged since the last step; ",
          has_checkpoint ? str("the newest checkpoint is in ", dir_.checkpoints()) : "there is no checkpoint yet",
          before > 0 ? str(". ", counted(static_cast<std::int64_t>(before), "bad step"),
                           " before it were skipped (train.max_bad_steps)")
                     : "",
          ". ");
  const std::int64_t first = trainer_.next_sample();
  if (std::isfinite(r.loss) && std::isfinite(r.norm))
    fail(what, "step ", trainer_.steps_done() + 1, ", ", samples_text(first, first + trainer_.next_batch_size()),
         ", a spike (train.spike_deviations)", then,
         "Inspect those samples, set train.on_bad_step to skip or rollback, or raise train.spike_deviations");
  fail(what, trainer_.diagnose_step(), then,
       "Lower optimizer.lr, lengthen schedule.warmup_steps, or inspect those samples");
}

}  // namespace ring
