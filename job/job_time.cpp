#include "job/job_time.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/clock.h"
#include "core/counted.h"

namespace ring {

std::int64_t now_ms() { return nanoseconds_now() / 1'000'000; }

double JobTime::goodput() const { return seconds() > 0 ? std::clamp(1 - lost() / seconds(), 0.0, 1.0) : 1; }

// Counts the time since `before` as lost. This is when the steps after the checkpoint began, or when the launcher
// started the job. If the previous process died before it reported the checkpoint, it is the time of the checkpoint's
// file.
void JobTime::on_steps_begin(std::int64_t restarts_so_far, std::int64_t step, std::int64_t checkpoint_ms) {
  const std::int64_t now = now_ms(), before = step == saved_step ? since_ms : std::max(since_ms, checkpoint_ms);
  if (begin_ms == 0) begin_ms = now;
  if (restarts_so_far > 0 && before > 0)
    restart_seconds += static_cast<double>(std::max<std::int64_t>(0, now - before)) / 1000;
  since_ms = now;
  restarts = restarts_so_far;
  on_rollback(step);
}

void JobTime::on_rollback(std::int64_t step) {
  steps_again += std::max<std::int64_t>(0, done_ - step);
  done_ = step;
}

void JobTime::on_out_of_memory(std::int64_t count_in_run) {
  if (ran_out_in_run_ >= 0) ran_out += std::max<std::int64_t>(0, count_in_run - ran_out_in_run_);
  ran_out_in_run_ = count_in_run;
}

void JobTime::on_save(std::int64_t step, std::int64_t asked_ms, double stall_seconds) {
  saved_step = step;
  since_ms = asked_ms + static_cast<std::int64_t>(1000 * stall_seconds);
}

std::string JobTime::text() const {
  const auto rounded = [](double x) { return std::round(10 * x) / 10; };
  std::string recovered = counted(restarts, "restart");
  if (failed_saves) recovered += ", " + counted(failed_saves, "failed save");
  if (bad_steps) recovered += ", " + counted(bad_steps, "bad step");
  if (ran_out) recovered += str(", memory ran out ", ran_out == 1 ? "once" : str(ran_out, " times"));
  if (steps_again) recovered += ", " + counted(steps_again, "step") + " computed again";
  return str(recovered, ", ", rounded(lost()), " s lost, goodput ", rounded(100 * goodput()),
             " % (share of the time that was not lost)");
}

}  // namespace ring
