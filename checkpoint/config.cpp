#include "checkpoint/config.h"

#include "core/steps.h"

namespace ring {

void CheckpointConfig::fields(Fields& f) {
  f("mode", mode,
    "async: steps continue while a thread writes a copy of the state, kept in host memory; blocking: steps wait, "
    "and nothing is copied",
    choices<SaveMode>({{"async", SaveMode::async}, {"blocking", SaveMode::blocking}}));
  f("interval", interval, "steps between checkpoints; 0: only by the clock and at the end", in_range(0, kMaxSteps));
  f("memory_interval", memory_interval,
    "under `ringmaster launch`: steps between snapshots that the launcher keeps in memory and restarts failed workers "
    "from; they need two copies of the state in host memory; 0: none",
    in_range(0, kMaxSteps));
  f("minutes", minutes, "maximum minutes between checkpoints, whatever the interval; 0: no limit", in_range(0, 1e8));
  f("auto", automatic,
    "instead of interval and minutes: choose the time between checkpoints that loses least, sqrt(2 x cost x MTBF), "
    "from the measured cost of a save");
  f("mtbf_hours", mtbf_hours,
    "for auto: initial mean time between failures (MTBF), corrected by this run's hours trained and failures",
    in_range(0.0001, 1e6));
  f("keep_last", keep_last, "newest checkpoints to keep", in_range(1, 1'000'000));
  f("keep_every", keep_every, "also keep every checkpoint whose step is a multiple of this; 0: none",
    in_range(0, kMaxSteps));
  f("on_error", on_error,
    "if a save fails, continue: train on and retry some steps later; stop: end the run; at the end of a run it is "
    "always an error",
    choices<AfterSaveError>({{"continue", AfterSaveError::go_on}, {"stop", AfterSaveError::stop}}));
  f("on_usr1", on_usr1,
    "on SIGUSR1, stop: save and end with exit code 75, as schedulers expect before a time limit; continue: save and "
    "train on",
    choices<OnUsr1>({{"stop", OnUsr1::stop}, {"continue", OnUsr1::go_on}}));
}

}  // namespace ring
