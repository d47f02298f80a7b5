#include "checkpoint/config.h"

#include "core/steps.h"

namespace ring {

void CheckpointConfig::fields(Fields& f) {
  f("mode", mode,
    "async: steps go on while a thread writes a copy of the state, which stays in host memory; blocking: they wait, "
    "and "
    "nothing is copied",
    choices<SaveMode>({{"async", SaveMode::async}, {"blocking", SaveMode::blocking}}));
  f("interval", interval, "steps between checkpoints; 0 = only by the clock and at the end", in_range(0, kMaxSteps));
  f("memory_interval", memory_interval,
    "under `ringmaster launch`: steps between snapshots that the launcher keeps in memory, from which it restarts "
    "workers that die; they take two copies of the state in host memory. 0 = none",
    in_range(0, kMaxSteps));
  f("minutes", minutes, "at most so much time between checkpoints, whatever the interval; 0 = no limit",
    in_range(0, 1e8));
  f("auto", automatic,
    "in place of interval and minutes: the time between checkpoints that loses least, sqrt(2 x cost x MTBF), from what "
    "a save was measured to cost");
  f("mtbf_hours", mtbf_hours,
    "for auto: the mean time between failures to begin with; hours trained and failures of this run correct it",
    in_range(0.0001, 1e6));
  f("keep_last", keep_last, "newest checkpoints to keep", in_range(1, 1'000'000));
  f("keep_every", keep_every, "also keep those of every so many steps; 0 = none", in_range(0, kMaxSteps));
  f("on_error", on_error,
    "when a checkpoint cannot be saved: continue = go on and try again some steps later; stop = end the run. At the "
    "end of a run it is always an error",
    choices<AfterSaveError>({{"continue", AfterSaveError::go_on}, {"stop", AfterSaveError::stop}}));
  f("on_usr1", on_usr1,
    "what SIGUSR1 asks for: stop = save and end with exit code 75, as schedulers mean it ahead of a time limit; "
    "continue = save and go on",
    choices<OnUsr1>({{"stop", OnUsr1::stop}, {"continue", OnUsr1::go_on}}));
}

}  // namespace ring
