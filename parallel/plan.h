#pragma once
// How a run is laid out over its processes: what the settings leave open is filled in, and whatever does not fit is
// refused here, with every message about it.

#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "model/config.h"
#include "parallel/config.h"
#include "parallel/context/layout.h"

namespace ring {

// The sequences of an optimizer step, over all replicas; and of a forward pass of one, 0: its whole share of the
// smallest step.
struct BatchSize {
  std::int64_t sequences = 1, micro_batch = 0;  // sequences: of the largest step
  std::vector<std::int64_t> others = {};        // of smaller steps of the run
};

struct ParallelPlan {
  ParallelConfig config;               // as it was given
  int pp = 1, dp = 1, cp = 1, tp = 1;  // degrees of the axes
  std::int64_t micro_batch = 1;        // sequences in a forward pass of each replica
  std::int64_t micro_batches = 1;      // of each replica in the largest step
  ContextLayout cp_layout{ContextLayoutKind::contiguous, 1, 1};

  int world() const { return pp * dp * cp * tp; }
  // How many ranks of cp share the KV heads where blocks are selected and measured; the others share queries alone.
  int cp_of_heads() const { return config.cp_schedule == ContextSchedule::all_to_all ? cp : 1; }
  std::string text() const;  // "dp 2, tp 2, zero 1": the degrees above 1; empty for one process
};

// The degrees and each replica's share of the batch: what the ranks need to form their groups and to read samples.
// Error names what would fit.
ParallelPlan plan_degrees(const ParallelConfig&, const ModelConfig& resolved, const BatchSize&, int world);
// All of it. Error: also a rank without tokens, a schedule that does not fit.
ParallelPlan make_plan(const ParallelConfig&, const ModelConfig& resolved, const BatchSize&, int world);

// Why parallel.cp_keys: referenced, which is allowed, does nothing in such a run, and what to do; empty: it does, or is
// not asked for, or one process has whole sequences.
std::string idle_keys(const ParallelPlan&, const ModelConfig& resolved);

// How the settings let so many ranks share a row of this length; parallel.cp_schedule: auto counts as ring.
ContextLayout context_layout(const ParallelConfig&, const ModelConfig& resolved, std::int64_t length, int ranks);

// The ranks that hold the same slice of the model: gradients are summed over them, and ZeRO shares states among them.
inline const AxisNames kDataAxes = {"dp", "cp"};
// tp varies fastest, then cp, then dp, then pp, so that ranks that talk most are neighbours.
MeshLayout mesh_layout(const ParallelPlan&, Device);
std::unique_ptr<Mesh> mesh_of_one();  // of a process that is alone

}  // namespace ring
