#include "checkpoint/config.h"

#include "core/steps.h"

namespace ring {

void CheckpointConfig::fields(Fields& f) {
  f("mode", mode, "async: steps continue while a copy of the state in host memory is written; blocking: steps wait",
    choices<SaveMode>({{"async", SaveMode::async}, {"blocking", SaveMode::blocking}}));
  f("interval", interval, "steps between checkpoints; 0: only by the clock and at the end", in_range(0, kMaxSteps));
  f("memory_interval", memory_interval,
    "steps between in-memory snapshots of `ringmaster launch` (two copies of the state); 0: none",
    in_range(0, kMaxSteps));
  f("minutes", minutes, "maximum minutes between checkpoints, whatever the interval; 0: no limit", in_range(0, 1e8));
  f("auto", automatic, "true: choose the time between saves from their measured cost, instead of interval and minutes");
  f("mtbf_hours", mtbf_hours,
    "for auto: initial mean time between failures; the run's trained hours and failures correct it",
    in_range(0.0001, 1e6));
  f("keep_last", keep_last, "newest checkpoints to keep", in_range(1, 1'000'000));
  f("keep_every", keep_every, "also keep every checkpoint whose step is a multiple of this; 0: none",
    in_range(0, kMaxSteps));
  f("on_error", on_error, "if a save fails, continue: train on and retry some steps later; stop: end the run",
    choices<AfterSaveError>({{"continue", AfterSaveError::go_on}, {"stop", AfterSaveError::stop}}));
  f("on_usr1", on_usr1, "on SIGUSR1, stop: save and end with exit code 75; continue: save and train on",
    choices<OnUsr1>({{"stop", OnUsr1::stop}, {"continue", OnUsr1::go_on}}));
}

}  // namespace ring
