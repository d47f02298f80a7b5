#pragma once
// Times attention over a sequence that is cut among the ranks of a group: what each schedule reaches beside one device
// alone with the same kernel, how much of its transfers is hidden behind the computation, and what they slow down.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "inspect/context_timeline.h"
#include "kernels/attention/attention.h"
#include "parallel/config.h"

namespace ring {

struct ContextGrid {
  std::vector<std::int64_t> lengths;  // tokens of the whole sequence
  std::int64_t heads = 16, kv_heads = 16, head_dim = 128;
  Pattern pattern;
  std::vector<ContextSchedule> schedules;
  ParallelConfig parallel;               // layout and prefetch
  std::int64_t longest_alone = 1 << 17;  // beyond, one device alone is taken to be as fast as there; 0: not measured
  double seconds = 0.5;                  // of each measurement, at least
};

struct ContextTiming {
  std::int64_t length = 0;
  std::string schedule;
  double forward_seconds = 0, both_seconds = 0;  // of the slowest rank; both: forward and backward
  double forward_flops = 0, both_flops = 0;      // of each rank, on average: of pairs that the pattern keeps
  // FLOP/s of one device with the whole sequence, all devices busy; 0: not measured.
  double forward_alone = 0, both_alone = 0;
  // Forward and backward together, on the slowest rank: without the transfers, whatever then stands in the place of
  // what they would bring, and the transfers one after the other without the computation (0: nothing travels).
  double computing_seconds = 0, transfer_seconds = 0;
  // How long messages were under way while no kernel ran, of the rank that waited longest: the median of some
  // repetitions. Waiting for a rank that still computes is part of it.
  double waited_seconds = 0;
  ContextTimeline timeline;     // of this rank, in the repetition that had this median
  std::size_t extra_bytes = 0;  // memory that a forward and backward took beside operands and results
  std::int64_t sent_bytes = 0;  // by this rank in a forward and backward

  // Share of the transfers' time beside which a kernel ran: 1 - waited / transfer, from 0 (more was waited than the
  // transfers alone take) to 1 (also where nothing travels).
  double hidden() const;
  // What all of it takes longer than the computation without transfers, as a share of that: what was waited for, and
  // what kernels lose to transfers beside them. Below 0: nothing but noise.
  double slowdown() const;
};

// All ranks of the mesh's cp axis call this; all get the same timings. Error: all_to_all, and the KV heads do not
// divide.
void time_context(const ContextGrid&, Mesh&, const ExecContext&,
                  const std::function<void(const ContextTiming&)>& report);

}  // namespace ring
