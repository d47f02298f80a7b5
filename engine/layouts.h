#pragma once
// Enumerates the layouts (dp, cp, tp, ZeRO) for a given number of processes and predicts the cost of each.

#include <string>
#include <vector>

#include "engine/planner.h"

namespace ring {

struct LayoutShortage {
  std::string layout;         // e.g. "dp 2, zero 3"
  std::size_t min_bytes = 0;  // bytes per device that would suffice
};

struct Layouts {
  std::vector<PlannedStep> fit;  // sorted by speed; of equally fast layouts, the one with the lowest peak is first
  std::vector<LayoutShortage> too_large;  // sorted by memory, smallest first
  std::string error;  // why no layout has the given degrees, or why the first invalid layout is invalid; else empty
  std::size_t tried = 0, count = 0;  // tried < count if PlanRequest::stopped ended the search
  std::size_t slower = 0;            // layouts that were not planned because their estimated times are longer
};

// Tries every combination of degrees that are not fixed, and each ZeRO stage that saves memory. On several nodes, tries
// only layouts whose tp groups, and whose groups of tp and cp together, share nodes evenly or fill whole nodes. If cp
// spans nodes, uses a two-level ring (parallel.cp_ranks_per_node) and, if parallel.cp_schedule is auto and the heads
// allow it, tries hybrid, too. With PlanRequest::max_layouts, goes from the best estimate to the worst, and ends when
// max_layouts layouts fit, or when 3 max_layouts were tried and at least one fits; if none of these fits, continues
// with the layouts that divide a sequence among the most ranks. On GPUs, a layout that does not fit with optimizer
// states on the device is tried with optimizer.offload set to states, then to all, unless the settings fix
// optimizer.offload. Offloaded states share train.activation_offload_bytes, if given, with activations. progress:
// called before each layout is tried.
Layouts try_layouts(const PlanRequest&, const PlanProgress& progress = {});
std::vector<PlannedStep> plan_layouts(const PlanRequest&);  // returns only the layouts that fit, fastest first

// Returns the number of cp ranks per node in a two-level ring or with hybrid (parallel.cp_ranks_per_node) for these
// degrees; 0 for a one-level ring. On one node, hybrid has all ranks on that node.
std::int64_t ring_ranks_per_node(const PlanRequest&, std::int64_t cp, std::int64_t tp);

struct LongestContext {
  std::int64_t tokens = 0;  // a multiple of 1,024; 0 if not even 1,024 tokens fit
  PlanRequest request;      // layout in which it fits, with all degrees fixed, for try_layouts()
};

// Returns the longest context whose step fits in some layout with one sequence at a time in each replica, to within
// 1/16. States are offloaded as in try_layouts(). progress: called before each layout is tried; the search may end
// before the last one. Throws PlanStopped if PlanRequest::stopped returns true.
LongestContext longest_context(const PlanRequest&, const PlanProgress& progress = {});

}  // namespace ring
