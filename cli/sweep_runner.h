#pragma once
// Trains the runs of a sweep, each in its own process, several at a time.

#include <functional>
#include <string>
#include <vector>

#include "cli/sweep_plan.h"
#include "launcher/worker.h"

namespace ring {

struct SweepOptions {
  int parallel = 1;  // number of processes at a time
  // A CUDA_VISIBLE_DEVICES value for each process; if empty, the environment's value is used.
  std::vector<std::string> gpus;
  std::string log_level;  // log level of the runs; empty for the default
};

class SweepRunner {
 public:
  // Writes the list of runs to `<directory>/sweep.json`. Throws Error if the directory belongs to a sweep with
  // different runs, or cannot be written.
  SweepRunner(const SweepPlan&, const SweepOptions&);

  // Trains the runs that are not finished yet. A run resumes from its last checkpoint; its output is appended to
  // `<directory>/<name>.log`. stop: polled often; once it returns true, active runs save and end, and no other runs
  // start.
  void run(const std::function<bool()>& stop);
  std::string folder(const SweepRun& r) const { return plan_.directory + "/" + r.name; }

 private:
  struct Slot {
    std::string name;  // name of the run in this slot
    std::unique_ptr<Worker> worker;
  };
  void save_state() const;
  void start_run(const SweepRun&, std::size_t slot);
  bool watch();  // handles ended runs; returns false if no run was active

  const SweepPlan& plan_;
  SweepOptions options_;
  std::vector<Slot> slots_;
};

}  // namespace ring
