#pragma once
// The settings section `parallel`: how the processes of a run share the work. parallel/plan.h replaces values of 0.

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"

namespace ring {

class Fields;

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
  void fields(Fields&);
  RingOptions ring_options(const std::vector<int>& nodes) const;  // nodes: the node of each rank of the cp axis
};

}  // namespace ring
