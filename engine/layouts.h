#pragma once
// Which layouts of so many processes there are, and what each would take.

#include <string>
#include <vector>

#include "engine/planner.h"

namespace ring {

struct LayoutShortage {
  std::string layout;     // "dp 2, zero 3"
  std::size_t least = 0;  // bytes of each device that would do
};

struct Layouts {
  std::vector<PlannedStep> fit;           // the fastest first; of equally fast layouts, the one with the lowest peak
  std::vector<LayoutShortage> too_large;  // the smallest first
  std::string error;                      // why the first of the others is none; empty: there are no others
  std::size_t tried = 0, count = 0;       // tried < count: PlanQuestion::stopped ended the search
};

// Tries all divisors of the number of processes as degrees that are not fixed, and each ZeRO stage that saves memory.
// On GPUs, a layout that does not fit with optimizer states on the device is tried with optimizer.offload: states, and
// then all, where the settings say nothing of that; they share train.activation_offload_bytes, if given, with
// activations. progress: called before each layout is tried.
Layouts try_layouts(const PlanQuestion&, const PlanProgress& progress = {});
std::vector<PlannedStep> plan_layouts(const PlanQuestion&);  // those that fit

struct LongestContext {
  std::int64_t tokens = 0;  // a power of two times 1,024 (or so many thousand more); 0: not even 1,024 fit
  PlanQuestion question;    // of the layout that holds it, with all degrees fixed: try_layouts() plans it
};

// The longest context whose step fits in some layout with one sequence at a time in each replica, to a sixteenth.
// States go to the host as in try_layouts(). progress: called before each layout is tried; the last of them may not be
// needed. Throws PlanStopped.
LongestContext longest_context(const PlanQuestion&, const PlanProgress& progress = {});

}  // namespace ring
