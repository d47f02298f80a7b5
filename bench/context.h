#pragma once
// Times attention over a sequence that is sharded among the ranks of a group: the rate of each schedule compared with
// one device alone and the same kernel, the share of its transfers that computation hides, and the slowdown that they
// cause.

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
  std::vector<std::int64_t> lengths;  // tokens in the whole sequence
  std::int64_t heads = 16, kv_heads = 16, head_dim = 128;
  Pattern pattern;
  std::vector<ContextSchedule> schedules;
  ParallelConfig parallel;  // layout and prefetch
  // Longest sequence that is measured on one device alone; longer ones are compared with its rate. 0 skips this.
  std::int64_t longest_alone = 1 << 17;
  double seconds = 0.5;  // minimum time of each measurement
};

struct ContextTiming {
  std::int64_t length = 0;
  std::string schedule;
  double forward_seconds = 0, both_seconds = 0;  // on the slowest rank; both: forward and backward
  double forward_flops = 0, both_flops = 0;      // per rank, on average, for the pairs that the pattern keeps
  // FLOP/s of one device with the whole sequence while all devices are busy; 0 if not measured.
  double forward_alone = 0, both_alone = 0;
  // Forward and backward on the slowest rank: computation without transfers (receive buffers keep stale data), and
  // transfers without computation, one after the other (0 if there are none).
  double computing_seconds = 0, transfer_seconds = 0;
  // Seconds that messages were in flight while no kernel ran, on the rank that waited longest: the median of several
  // repetitions. Includes waiting for ranks that still compute.
  double waited_seconds = 0;
  ContextTimeline timeline;     // of this rank, in the repetition with that median
  std::size_t extra_bytes = 0;  // peak bytes of a forward and backward beyond operands and results
  std::int64_t sent_bytes = 0;  // bytes that this rank sends in a forward and backward

  // Returns the share of the transfer time that is hidden behind kernels: 1 - waited / transfer, limited to [0, 1]; 1
  // if there are no transfers.
  double hidden() const;
  // Returns the extra time relative to computation without transfers: time waited, plus time that kernels lose to
  // concurrent transfers. Negative values are noise.
  double slowdown() const;
};

// Collective over the mesh's cp axis; all ranks get the same timings. Throws Error for all_to_all if the ranks do not
// divide the KV heads.
void time_context(const ContextGrid&, Mesh&, const ExecContext&,
                  const std::function<void(const ContextTiming&)>& report);

}  // namespace ring
