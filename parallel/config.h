#pragma once
// The settings section `parallel`: how the processes of a run share the work. parallel/plan.h replaces values of 0.

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"

namespace ring {

class Fields;

// Value that represents cp, tp and zero: auto.
inline constexpr std::int64_t kAutoDegree = -1;

struct ParallelConfig {
  std::int64_t dp = 0, cp = 1, tp = 1, pp = 1;
  ContextLayoutChoice cp_layout = ContextLayoutChoice::automatic;
  ContextSchedule cp_schedule = ContextSchedule::automatic;
  ContextKeys cp_keys = ContextKeys::automatic;
  ContextMessages cp_messages = ContextMessages::exact;
  std::int64_t cp_prefetch = 1, cp_ranks_per_node = 0;
  std::int64_t cp_message_bytes = std::int64_t{1} << 30;
  std::int64_t zero = 0;
  DType reduce = DType::f32;
  std::vector<std::string> chosen;  // keys that `auto` chose: "dp", "cp", "tp", "zero", "cp_schedule", "offload"
  void fields(Fields&);
  bool is_automatic() const { return cp == kAutoDegree || tp == kAutoDegree || zero == kAutoDegree; }
  // Returns true if the layout must be chosen: for `auto`, or if the degrees were chosen for a different number of
  // processes.
  bool is_open(int world) const { return is_automatic() || (!chosen.empty() && dp * cp * tp != world); }
  RingOptions ring_options(const std::vector<int>& nodes) const;  // nodes: the node of each rank of the cp axis
};

// Returns the settings with the defaults in place of `auto`.
ParallelConfig without_auto(ParallelConfig);

}  // namespace ring
