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

// Facts that a rank sends to the others about the state that it kept.
struct KeptFacts {
  std::int64_t step = 0;
  bool finished = false;  // true on rank 0 if it recorded the step and did everything due after it, e.g. an evaluation
  IslandPlace island;
  StepReport last;           // report of the latest step; last.step is 0 if none was finished
  StepReport earlier;        // report of the step before; likewise
  std::int64_t kept_ms = 0;  // time (now_ms()) at which keep() copied the state
  std::string choices = {};  // the rank's kernel choices (Tuning::text()); not sent
};

// Summary of the states that all ranks kept; identical on every rank. With islands that train alone, an island is whole
// if all its ranks kept the state of the same step in the same island; otherwise none of them continues from it.
struct KeptStates {
  // Step from which the run continues: the lowest step among the kept states. With islands, the highest step of any
  // whole island; the other islands train alone until they reach it.
  std::int64_t step = 0;
  int donor = 0;              // lowest rank that continues from its kept state of `step`
  std::vector<bool> holders;  // for each rank, true if it continues from the state that it kept
  std::vector<int> replaced;  // ranks whose process is new
  std::int64_t kept_ms = 0;   // time (now_ms()) at which the donor copied its state
  // True if rank 0 survived and had already recorded `step` and the evaluations that follow it.
  bool recorded = false;
  int islands = 0;          // number of islands now; 0 without an outer optimizer
  bool renumbered = false;  // true if the number of islands has changed, or an island has a new number
  IslandPlace donor_from;   // the island in which the donor was when it kept its state
  // The donor's reports of its latest step and the one before; their `step` is 0 if it had finished none. Rank 0 may
  // have recorded neither: with a GPU it launches a step before it records the previous one.
  StepReport last, earlier;

  bool all_hold() const;
  const IslandExchange& exchange() const { return donor_from.exchange; }
  std::vector<int> lost_islands() const;  // islands that are not whole
  // Returns what the island of `rank` contributes when the losses of `step` are averaged over the islands. own: latest
  // report of the island; returned if it is the report of `step`. If the island is new, or skipped `step` because it
  // was a bad step, returns the donor's report with accepted = false, which has weight 0 in the average. Returns
  // nullopt if the island's report of `step` was lost, or if the donor has none.
  std::optional<StepReport> report_to_average(const StepReport& own, int rank) const;
};

class KeptState {
 public:
  void keep(const State&, const Stream&, KeptFacts);  // copies the state into host memory; throws OutOfMemory
  void keep_nothing();  // call instead if this process has no consistent state, but other islands may have one
  bool holds() const { return copy_.has_value() || stays_; }  // true after keep() and keep_nothing()
  void clear();
  const StepReport& last() const { return facts_.last; }  // the report that keep() was given; remains after clear()
  const std::string& choices() const { return facts_.choices; }  // likewise

  // Compares the kept states of all ranks. Returns nullopt if the run cannot continue from any of them. islands: as
  // KeptStates::islands. Collective.
  std::optional<KeptStates> compare(Communicator& host, int islands = 0) const;
  // Fills the State and frees the kept state. Ranks that hold the state use their own copy.
  // The others receive the donor's, whose tensors must be unsharded. With islands, a rank without a state receives the
  // outer weights and the outer momentum and, after the first exchange, the optimizer states of the rank at the same
  // position in the donor's island, but not the weights and residuals of its own island. Collective.
  void load(const KeptStates&, State&, const Stream&, Communicator& host);
  // Fills the State from this rank's own copy, and frees the copy. island: of this rank now. Not collective.
  void restore(State&, const Stream&, int island = 0);

 private:
  std::optional<Snapshot> copy_;
  bool stays_ = false;  // true after keep_nothing()
  KeptFacts facts_;
};

}  // namespace ring
