#include "checkpoint/config.h"

#include "core/steps.h"

namespace ring {

void CheckpointConfig::fields(Fields& f) {
  f("mode", mode, "async writes a copy of the state in a thread while training continues; blocking waits",
    choices<SaveMode>({{"async", SaveMode::async}, {"blocking", SaveMode::blocking}}),
    docs_page("checkpoints.md#while-steps-go-on"));
  f("interval", interval, "steps between checkpoints; 0 = only by the clock and at the end", in_range(0, kMaxSteps));
  f("memory_interval", memory_interval,
    "steps between snapshots in the launcher's memory, from which it restarts workers; 0 = none",
    in_range(0, kMaxSteps), docs_page("checkpoints.md#in-memory"));
  f("minutes", minutes, "at most so much time between checkpoints, whatever the interval; 0 = no limit",
    in_range(0, 1e8));
  f("auto", automatic, "save at the interval that loses the least time, instead of interval and minutes",
    docs_page("checkpoints.md#how-often"));
  f("mtbf_hours", mtbf_hours, "auto: initial estimate of the mean time between failures", in_range(0.0001, 1e6),
    docs_page("checkpoints.md#how-often"));
  f("keep_last", keep_last, "newest checkpoints to keep", in_range(1, 1'000'000));
  f("keep_every", keep_every, "also keep those of every so many steps; 0 = none", in_range(0, kMaxSteps));
  f("on_error", on_error, "if a checkpoint cannot be saved: continue and retry some steps later, or stop the run",
    choices<AfterSaveError>({{"continue", AfterSaveError::go_on}, {"stop", AfterSaveError::stop}}),
    docs_page("checkpoints.md#while-steps-go-on"));
  f("on_usr1", on_usr1, "after SIGUSR1: stop = save and exit with code 75; continue = save and continue",
    choices<OnUsr1>({{"stop", OnUsr1::stop}, {"continue", OnUsr1::go_on}}),
    docs_page("training.md#stopping-and-resuming"));
}

}  // namespace ring
