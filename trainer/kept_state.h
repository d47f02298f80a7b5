#pragma once
// A copy of the run's state that a process keeps in its own memory when it loses a peer. Once the launcher has replaced
// the peer, all processes continue from a copy that the survivors kept (job/replacement.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state.h"
#include "comm/communicator.h"
#include "trainer/trainer.h"

namespace ring {

// Summary of the states that all ranks kept; identical on every rank.
struct KeptStates {
  std::int64_t step = 0;      // lowest step among the kept states; the run can continue from it
  int donor = 0;              // lowest rank that kept the state of `step`
  std::vector<bool> holders;  // for each rank, true if it kept the state of `step`
  std::vector<int> replaced;  // ranks without a kept state, because their process is new
  std::int64_t kept_ms = 0;   // time (now_ms()) at which the donor copied its state
  // True if rank 0 survived and had already recorded `step` and the evaluations that follow it.
  bool recorded = false;
  StepReport last;  // the donor's report of its latest step; last.step is 0 if it had finished none
};

class KeptState {
 public:
  // Copies the state into host memory. finished: true if the step was recorded and everything due after it,
  // such as an evaluation, was done. Throws OutOfMemory.
  void keep(const State&, const Stream&, std::int64_t step, bool finished, const StepReport& last);
  bool holds() const { return copy_.has_value(); }
  void clear() { copy_.reset(); }

  // Compares the kept states of all ranks. Returns nullopt if no rank kept a state. Collective.
  std::optional<KeptStates> compare(Communicator& host) const;
  // Fills the State (unsharded tensors in host memory) with the state kept at KeptStates::step: ranks that hold that
  // state use their own copy, the others receive the donor's. Frees the kept state. Collective.
  void load(const KeptStates&, State&, const Stream&, Communicator& host);

 private:
  std::optional<Snapshot> copy_;
  std::int64_t step_ = 0, kept_ms_ = 0;
  bool finished_ = false;
  StepReport last_;
};

}  // namespace ring
