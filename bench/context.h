#pragma once
// Times attention over a sequence that is sharded over the ranks of a group: the rate of each schedule relative to the
// same kernel on a single device, the share of transfers that computation hides, and the slowdown that transfers cause.

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
  std::vector<std::int64_t> lengths;  // numbers of tokens in the whole sequence
  std::int64_t heads = 16, kv_heads = 16, head_dim = 128;
  Pattern pattern;
  std::vector<ContextSchedule> schedules;
  ParallelConfig parallel;  // layout, prefetch and messages
  // Longest sequence that is measured on a single device; longer ones are compared with its rate. 0 skips this
  // measurement.
  std::int64_t longest_alone = 1 << 17;
  double seconds = 0.5;  // minimum time of each measurement
};

struct ContextTiming {
  std::int64_t length = 0;
  std::string schedule;
  double forward_seconds = 0, both_seconds = 0;  // seconds on the slowest rank; both: forward and backward
  double forward_flops = 0, both_flops = 0;      // mean per rank, for the pairs that the pattern keeps
  // FLOP/s of one device with the whole sequence while all devices are busy; 0 if not measured.
  double forward_alone = 0, both_alone = 0;
  // Forward and backward on the slowest rank: computation without transfers (receive buffers keep stale data), and
  // transfers without computation, one after another (0 if there are none).
  double computing_seconds = 0, transfer_seconds = 0;
  // Seconds for which messages were in flight while no kernel ran, on the rank that waited longest: the median over
  // several repetitions. Includes waiting for ranks that are still computing.
  double waited_seconds = 0;
  ContextTimeline timeline;     // timeline of this rank, in the repetition with the median time
  std::size_t extra_bytes = 0;  // peak bytes of a forward and backward, excluding operands and results
  std::int64_t sent_bytes = 0;  // bytes that this rank sends in a forward and backward

  // Returns the share of the transfer time that kernels hide: 1 - waited / transfer, clamped to [0, 1]; 1 if there are
  // no transfers.
  double hidden_share() const;
  // Returns the extra time relative to computation without transfers: the time waited, plus the time that kernels lose
  // to concurrent transfers. Negative values are noise.
  double slowdown() const;
};

// Collective over the mesh's cp axis; all ranks get the same timings. Throws Error if the KV heads cannot be divided
// among all ranks (all_to_all) or among the ranks of a node (hybrid).
void time_context(const ContextGrid&, Mesh&, const ExecContext&,
                  const std::function<void(const ContextTiming&)>& report);

}  // namespace ring
