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

// Summary of the states that all ranks kept; identical on every rank. With islands that train alone, the ranks of an
// island are consecutive. An island is whole if all its ranks kept the state of the same step; otherwise none of its
// ranks continues from a kept state.
struct KeptStates {
  // Step from which the run continues: the lowest step among the kept states. With islands, the highest step of a whole
  // island, up to which the other islands train alone.
  std::int64_t step = 0;
  int donor = 0;              // lowest rank that continues from its kept state of `step`
  std::vector<bool> holders;  // for each rank, true if it continues from the state that it kept
  std::vector<int> replaced;  // ranks whose process is new
  std::int64_t kept_ms = 0;   // time (now_ms()) at which the donor copied its state
  // True if rank 0 survived and had already recorded `step` and the evaluations that follow it.
  bool recorded = false;
  int islands = 1;
  IslandExchange exchange;  // the latest exchange of weights between the islands
  StepReport last;          // the donor's report of its latest step; last.step is 0 if it had finished none

  bool all_hold() const;
  std::vector<int> lost_islands() const;  // islands that are not whole
};

class KeptState {
 public:
  // Copies the state into host memory. finished: true if the step was recorded and everything due after it,
  // such as an evaluation, was done. Throws OutOfMemory.
  void keep(const State&, const Stream&, std::int64_t step, bool finished, const StepReport& last,
            const IslandExchange& = {});
  void keep_nothing();  // call instead if this process has no consistent state, but other islands may have one
  bool holds() const { return copy_.has_value() || step_ < 0; }  // true after keep() and keep_nothing()
  void clear();
  const StepReport& last() const { return last_; }  // the report that keep() was given; remains after clear()

  // Compares the kept states of all ranks. Returns nullopt if the run cannot continue from any of them. Collective.
  std::optional<KeptStates> compare(Communicator& host, int islands = 1) const;
  // Fills the State (tensors in host memory). Ranks that hold the state use their own copy. The others receive the
  // donor's, whose tensors must be unsharded; with islands, they receive the outer weights and the outer momentum, and
  // as optimizer states those of the donor's island, from the rank at the same position in the donor's island, but not
  // the weights and residuals of their own island. Frees the kept state. Collective.
  void load(const KeptStates&, State&, const Stream&, Communicator& host);
  // Fills the State from this rank's own copy, and frees the copy. Not collective.
  void restore(State&, const Stream&);

 private:
  std::optional<Snapshot> copy_;
  std::int64_t step_ = 0, kept_ms_ = 0;  // step_: -1 after keep_nothing()
  bool finished_ = false;
  IslandExchange exchange_;
  StepReport last_;
};

}  // namespace ring
