#pragma once
// Counts a job's recoveries and the time lost to them, over all restarts of the job. Rank 0 updates the JobTime in its
// shared page (job/worker_status.h), and rank 0's agent passes it on to the next attempt.

#include <cstdint>
#include <string>

namespace ring {

// Returns milliseconds on CLOCK_MONOTONIC, which is the same for all processes on a host and is never adjusted.
std::int64_t now_ms();

struct JobTime {
  std::int64_t begin_ms = 0;     // start of the job on the clock of now_ms(); 0 if unknown
  std::int64_t since_ms = 0;     // all lost time before this is already counted
  std::int64_t saved_step = -1;  // step of the state at since_ms if this state is known to be saved, else -1
  std::int64_t restarts = 0, failed_saves = 0, bad_steps = 0;
  std::int64_t ran_out = 0;      // how often memory ran out
  std::int64_t steps_again = 0;  // number of steps recomputed after a restart, a bad step or a rollback
  // Time lost to restarts and to recomputing steps after them, to steps that saves stalled, and to bad steps.
  double restart_seconds = 0, save_seconds = 0, bad_step_seconds = 0;

  double seconds() const { return static_cast<double>(now_ms() - begin_ms) / 1000; }
  double lost() const { return restart_seconds + save_seconds + bad_step_seconds; }
  double goodput() const;  // fraction of the time that was not lost, 0 to 1

  // Call when steps begin from the checkpoint of `step`, which was written at checkpoint_ms; 0 if there is none.
  void on_steps_begin(std::int64_t restarts_so_far, std::int64_t step, std::int64_t checkpoint_ms);
  // Call when the state of `step` has been saved; asked_ms: time when the save was requested.
  void on_save(std::int64_t step, std::int64_t asked_ms, double stall_seconds);
  void on_step_done(std::int64_t step) { done_ = step; }
  // Call after a rollback to the state of `step`.
  void on_rollback(std::int64_t step);
  // Call when memory ran out. count_in_run: how often it ran out in the whole run, which may be older than this job.
  void on_out_of_memory(std::int64_t count_in_run);
  // Returns e.g. "3 restarts, 1 failed save, 57 steps computed again, 41.2 s lost, goodput 98.7 % (share of ...)".
  std::string text() const;

 private:
  std::int64_t done_ = 0;             // the last step that was done
  std::int64_t ran_out_in_run_ = -1;  // -1 if unknown
};

}  // namespace ring
