#pragma once
// The runs of a sweep, each a process of its own, several at a time.

#include <functional>
#include <string>
#include <vector>

#include "cli/sweep_plan.h"
#include "launcher/worker.h"

namespace ring {

struct SweepOptions {
  int parallel = 1;               // processes at a time
  std::vector<std::string> gpus;  // as CUDA_VISIBLE_DEVICES names them, one for each process; empty: as they are
  std::string log_level;          // of the runs; empty: the default
};

class SweepRunner {
 public:
  // Says in `<directory>/sweep.json` what the runs are. Error: the directory was begun with others, or cannot be
  // written.
  SweepRunner(const SweepPlan&, const SweepOptions&);

  // Trains what is not finished: a run goes on from its last checkpoint, and what it prints is appended to
  // `<directory>/<name>.log`. stop: to be asked often; once it is true, runs under way save and end, and no more begin.
  void run(const std::function<bool()>& stop);
  std::string folder(const SweepRun& r) const { return plan_.directory + "/" + r.name; }

 private:
  struct Slot {
    std::string name;  // of the run
    std::unique_ptr<Worker> worker;
  };
  void remember() const;
  void start(const SweepRun&, std::size_t slot);
  bool watch();  // false: nothing is under way

  const SweepPlan& plan_;
  SweepOptions options_;
  std::vector<Slot> slots_;
};

}  // namespace ring
