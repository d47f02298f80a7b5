#pragma once
// The settings section `parallel`: how the processes of a run share the work. parallel/plan.h replaces values of 0.

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"
#include "parallel/pipeline/schedule.h"

namespace ring {

class Fields;

// Value that represents cp, tp and zero: auto.
inline constexpr std::int64_t kAutoDegree = -1;

// Codes in which ranks send gradients (kernels/gradient_codes.h). none: gradients are sent as they are, in the type
// parallel.reduce.
enum class GradientCompression : std::uint8_t { none, automatic, bf16, int8, fp8, sparse, topk };

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
  GradientCompression compress = GradientCompression::none;
  double compress_top = 0.01;  // topk: share of the elements that is sent
  // Islands train alone for local_steps steps, then an outer optimizer combines their weights (DiLoCo). islands: 0 is
  // one island per node; resolve_islands() replaces it with their number.
  std::int64_t islands = 1, local_steps = 0;
  double outer_lr = 0.7, outer_momentum = 0.6;
  std::int64_t outer_bits = 32;      // bits of each weight difference that islands exchange: 32, 8, 4 or 2
  std::int64_t outer_fragments = 1;  // fragments of the model, each averaged over the islands at a different step
  std::int64_t outer_delay = 0;      // steps during which a fragment's messages are in flight: 0 or 1
  PipelineOrder pp_order = PipelineOrder::automatic;
  std::int64_t pp_parts = 1;              // interleaved: parts of the model in each stage
  std::int64_t pp_slices = 1;             // slices of each sequence; they pass through the stages one after another
  std::vector<std::int64_t> pp_division;  // blocks of each part of the model; empty: divided by FLOPs
  // Keys that `auto` chose: "dp", "cp", "tp", "zero", "cp_schedule", "offload", "compress".
  std::vector<std::string> chosen;
  void fields(Fields&);
  bool is_automatic() const { return cp == kAutoDegree || tp == kAutoDegree || zero == kAutoDegree; }
  // Returns true if the layout must be chosen: for `auto`, or if the degrees were chosen for a different number of
  // processes.
  bool is_open(int world) const;
  RingOptions ring_options(const std::vector<int>& nodes) const;  // nodes: the node of each rank of the cp axis
};

// Returns a pp_division as a setting: "pp_division: [6, 6, 5]".
std::string division_text(const std::vector<std::int64_t>& blocks);

// Returns the settings with the defaults in place of `auto`.
ParallelConfig without_auto(ParallelConfig);

}  // namespace ring
