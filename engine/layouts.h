#pragma once
// Which layouts of so many processes there are, and what each would take.

#include <functional>
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
};

// Degrees are tried in powers of two, and each ZeRO stage that saves something. On GPUs, a layout that does not fit
// with optimizer states on the device is tried with optimizer.offload: states, and then all, where the settings say
// nothing of that; they share train.activation_offload_bytes, if given, with activations.
// on_layout: called before each layout is tried, with the number of layouts tried so far and of all.
using LayoutProgress = std::function<void(std::size_t done, std::size_t all)>;
Layouts try_layouts(const PlanQuestion&, const LayoutProgress& on_layout = {});
std::vector<PlannedStep> plan_layouts(const PlanQuestion&);  // those that fit

// The longest context, a power of two times 1,024 (or so many thousand more), whose step fits in some layout with one
// sequence at a time in each replica; 0: not even 1,024. To a sixteenth.
std::int64_t longest_context(const PlanQuestion&);

}  // namespace ring
