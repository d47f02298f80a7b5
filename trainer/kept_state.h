#pragma once
// The state of a run that a process keeps in its own memory when it loses a peer. Once the launcher has replaced the
// peer, all processes continue from a state that the others kept (job/replacement.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state.h"
#include "comm/communicator.h"
#include "trainer/trainer.h"

namespace ring {

// Facts about the states that the ranks kept, the same on all ranks.
struct KeptStates {
  std::int64_t step = 0;      // the lowest step of a kept state, from which the run can continue
  int donor = 0;              // the lowest rank that kept the state of `step`
  std::vector<bool> holders;  // for each rank, whether it kept the state of `step`
  std::vector<int> replaced;  // ranks that kept no state, because their processes are new
  std::int64_t kept_ms = 0;   // time at which the donor kept the state, on the clock of now_ms()
  // True if rank 0 is an old process and had finished `step`: it recorded the step and the evaluations after the step.
  bool recorded = false;
  StepReport last;  // the donor's report of its latest step; last.step is 0 if the process had done none
};

class KeptState {
 public:
  // Copies the state into host memory. finished: true if everything that follows the step was done, such as an
  // evaluation. Throws OutOfMemory.
  void keep(const State&, const Stream&, std::int64_t step, bool finished, const StepReport& last);
  bool holds() const { return copy_.has_value(); }
  void clear() { copy_.reset(); }

  // Returns nullopt if no rank kept a state. Collective.
  std::optional<KeptStates> compare(Communicator& host) const;
  // Fills the State, whose tensors must be whole and in host memory, from the states of KeptStates::step: each holder
  // from its own, the other ranks from the donor's. Frees the kept state. Collective.
  void load(const KeptStates&, State&, const Stream&, Communicator& host);

 private:
  std::optional<Snapshot> copy_;
  std::int64_t step_ = 0, kept_ms_ = 0;
  bool finished_ = false;
  StepReport last_;
};

}  // namespace ring
