#pragma once
// The layout of a run over its processes: fills in what the settings leave open, and rejects settings that do not fit.

#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "model/config.h"
#include "parallel/config.h"
#include "parallel/context/layout.h"

namespace ring {

// sequences: per optimizer step, over all replicas. micro_batch: per forward pass of one replica; 0 means a replica's
// whole share of the smallest step.
struct BatchSize {
  std::int64_t sequences = 1, micro_batch = 0;  // sequences: of the largest step
  std::vector<std::int64_t> others = {};        // sequences of the run's smaller steps
  std::int64_t sequence_chunk = 0;  // tokens of a sequence that a replica computes at a time; 0 means all of them
  bool packed = false;              // true if samples hold several documents or sequences
};

struct ParallelPlan {
  ParallelConfig config;               // the settings; an automatic schedule is resolved if the model decides it
  int islands = 1;                     // degree of the outermost axis: groups of ranks that train alone between syncs
  int pp = 1, dp = 1, cp = 1, tp = 1;  // degrees of the axes
  std::int64_t micro_batch = 1;        // sequences in each forward pass of a replica
  std::int64_t micro_batches = 1;      // micro-batches of each replica in the largest step
  // True if the parts of cp_layout are computed one after another (train.sequence_chunk or parallel.pp_slices).
  bool in_chunks = false;
  // Divides each sequence among the ranks of cp, or into chunks. The ranks of cp share each chunk (slices_of_parts(),
  // aligned to tp).
  ContextLayout cp_layout{ContextLayoutKind::contiguous, 1, 1};

  int world() const { return islands * pp * dp * cp * tp; }
  // Returns how often a replica runs the backward of a block in the largest step.
  std::int64_t forwards() const { return micro_batches * (in_chunks ? cp_layout.ranks() : 1); }
  // Returns how many cp ranks split the KV heads: cp with all_to_all; 1 with schedules that split only queries.
  int cp_of_heads() const { return config.cp_schedule == ContextSchedule::all_to_all ? cp : 1; }
  std::string text() const;  // "dp 2, cp 8 hybrid, zero 1": the degrees above 1; empty for one process
};

// Returns the parallel degrees and each replica's share of the batch, which ranks need to form groups and to read
// samples. Throws Error listing values that would fit.
ParallelPlan plan_degrees(const ParallelConfig&, const ModelConfig& resolved, const BatchSize&, int world);
// Returns the complete plan. Throws Error also if a rank gets no tokens or the schedule does not fit.
ParallelPlan make_plan(const ParallelConfig&, const ModelConfig& resolved, const BatchSize&, int world);

// Returns true if, with the model sharded over tp ranks, the given number of cp ranks per node can exchange its heads
// with the hybrid schedule.
bool supports_hybrid(const ModelConfig& resolved, std::int64_t tp, std::int64_t ranks_on_node);
// Throws Error if the schedule is hybrid and the KV heads cannot be divided among the given number of cp ranks per
// node.
void check_ranks_on_node(const ParallelPlan&, const ModelConfig& resolved, int ranks);

// Returns the layout of a row of `length` tokens over `ranks` ranks; parallel.cp_schedule: auto is treated as ring.
// packed: true if rows hold several documents or sequences.
ContextLayout context_layout(const ParallelConfig&, const ModelConfig& resolved, std::int64_t length, int ranks,
                             bool packed = false);

// The axes of the ranks that hold the same slice of the model: gradients are summed over these ranks, and ZeRO shards
// states among them.
inline const AxisNames kDataAxes = {"dp", "cp"};
// The axes of the ranks of an island, which train one copy of the model.
inline const AxisNames kIslandAxes = {"pp", "dp", "cp", "tp"};
// Returns the mesh: tp varies fastest, then cp, dp, pp, island, so that the ranks that communicate most are adjacent.
MeshLayout mesh_layout(const ParallelPlan&, Device);
std::unique_ptr<Mesh> mesh_of_one();  // returns the mesh of a single process

}  // namespace ring
