#pragma once
// The bytes that a rank sends in a step, counted by dry steps (engine/dry_step.h), as context parallelism grows.

#include <string>
#include <vector>

#include "engine/planner.h"

namespace ring {

// Bytes that one rank sends in a step, by their purpose.
struct SentBytes {
  double context = 0;        // keys, values and their gradients, to other ranks of cp
  double gathers = 0;        // weights, with parallel.zero
  double reductions = 0;     // gradients, and small sums such as losses and norms
  double tensor = 0;         // messages of tensor parallelism
  double between_nodes = 0;  // part of the others that goes to other nodes
  double all() const { return context + gathers + reductions + tensor; }
};

// Amounts at one number of ranks.
struct SentRow {
  std::int64_t cp = 1, context = 0;  // context: tokens of a sequence
  SentBytes sent;                    // amounts of the rank that sends the most
  bool upper_bound = false;          // true if the amounts were extrapolated but may not grow linearly
  std::string error;                 // why no layout has this number of ranks; otherwise empty
};

struct SentTable {
  PlannedStep step;              // a layout of a few ranks; all rows use its micro-batch and recomputation
  std::int64_t rank_tokens = 0;  // tokens of each sequence that a rank holds
  std::int64_t step_tokens = 0;  // tokens of a rank in a step
  std::vector<SentRow> rows;
};

// Counts the bytes for these numbers of ranks of cp. A rank keeps its tokens: q.config.model.context divided by
// parallel.cp. The other degrees and parallel.zero are taken from the settings (dp: 0 means 1), and q.world.per_node is
// the number of ranks on a node. Throws Error if no such layout of up to 16 ranks of cp fits into q.budget.
SentTable count_sent_bytes(const PlanRequest& q, const std::vector<std::int64_t>& cp);

}  // namespace ring
