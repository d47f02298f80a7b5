#pragma once
// What a job recovered from and what its time went to, over all its restarts. Rank 0 keeps the account in its page
// (job/worker_page.h), and its agent hands it on to the next attempt.

#include <cstdint>
#include <string>

namespace ring {

// Milliseconds of CLOCK_MONOTONIC, which all processes of a host read alike and nobody sets.
std::int64_t now_ms();

struct JobTime {
  std::int64_t begin_ms = 0;     // of the job, as now_ms(); 0: not known yet
  std::int64_t since_ms = 0;     // earlier time is counted, or was not lost
  std::int64_t saved_step = -1;  // that is known to be saved, as it was at since_ms; -1: none
  std::int64_t restarts = 0, failed_saves = 0, bad_steps = 0;
  std::int64_t ran_out = 0;      // how often memory did
  std::int64_t steps_again = 0;  // that were computed once more: after a restart, a bad step or a rollback
  // Lost: to what was computed again and the restarts themselves, to saves that held up steps, to steps that were bad.
  double restart_seconds = 0, save_seconds = 0, bad_step_seconds = 0;

  double seconds() const { return static_cast<double>(now_ms() - begin_ms) / 1000; }
  double lost() const { return restart_seconds + save_seconds + bad_step_seconds; }
  double goodput() const;  // the share of time that was not lost, 0 to 1

  // Steps follow, from that of a checkpoint, which was written at checkpoint_ms; 0: there is none.
  void steps_begin(std::int64_t restarts_so_far, std::int64_t step, std::int64_t checkpoint_ms);
  // The state of a step, asked for at that time.
  void saved(std::int64_t step, std::int64_t asked_ms, double stall_seconds);
  void step_done(std::int64_t step) { done_ = step; }
  // To an earlier state, of that step.
  void rolled_back(std::int64_t step);
  // So often in the run so far, which may be older than this job.
  void memory_ran_out(std::int64_t in_run);
  std::string text()
      const;  // "3 restarts, 1 failed save, 57 steps computed again, 41.2 s lost, goodput 98.7 % (share of ...)"

 private:
  std::int64_t done_ = 0;             // the step
  std::int64_t ran_out_in_run_ = -1;  // -1: not known yet
};

}  // namespace ring
