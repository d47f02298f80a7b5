#include "parallel/config.h"

#include <algorithm>

#include "core/byte_size.h"
#include "core/fields.h"
#include "core/joined.h"
#include "job/environment.h"

namespace ring {

namespace {

constexpr std::int64_t kMaxSlices = 4096;

void context_fields(ParallelConfig& c, Fields& f) {
  f("cp_layout", c.cp_layout,
    "how ranks share a row: zigzag, contiguous, balanced by the pairs of its documents, or auto",
    choices<ContextLayoutChoice>({{"auto", ContextLayoutChoice::automatic},
                                  {"zigzag", ContextLayoutChoice::zigzag},
                                  {"contiguous", ContextLayoutChoice::contiguous},
                                  {"balanced", ContextLayoutChoice::balanced}}),
    docs_page("parallelism.md#context-parallelism"));
  f("cp_schedule", c.cp_schedule,
    "how queries meet keys of other ranks: ring, gather, all_to_all, hybrid, or the fastest (auto)",
    choices<ContextSchedule>({{"auto", ContextSchedule::automatic},
                              {"ring", ContextSchedule::ring},
                              {"gather", ContextSchedule::gather},
                              {"all_to_all", ContextSchedule::all_to_all},
                              {"hybrid", ContextSchedule::hybrid}}),
    docs_page("parallelism.md#context-parallelism"));
  f("cp_keys", c.cp_keys, "keys that ring and gather send for selected blocks: referenced, all, or auto",
    choices<ContextKeys>(
        {{"auto", ContextKeys::automatic}, {"all", ContextKeys::all}, {"referenced", ContextKeys::referenced}}),
    docs_page("parallelism.md#context-parallelism"));
  f("cp_messages", c.cp_messages,
    "messages of all but all_to_all: exact, key gradients in bf16, or also keys and values in e4m3 (fp8)",
    choices<ContextMessages>(
        {{"exact", ContextMessages::exact}, {"bf16", ContextMessages::bf16}, {"fp8", ContextMessages::fp8}}),
    docs_page("parallelism.md#rounded-messages"));
  f("cp_prefetch", c.cp_prefetch, "ring: number of steps whose keys are sent ahead of their use", in_range(0, 1024));
  f("cp_message_bytes", c.cp_message_bytes,
    "largest message of a ring; above it, the ring turns once per group of KV heads",
    bytes_in_range(1 << 20, std::int64_t{1} << 40), docs_page("parallelism.md#context-parallelism"));
  f("cp_ranks_per_node", c.cp_ranks_per_node,
    "ring and hybrid: cp ranks per node, a divisor of cp; 0 = the number given by the actual placement",
    in_range(0, kMaxProcesses));
}

void gradient_fields(ParallelConfig& c, Fields& f) {
  f("reduce", c.reduce, "type in which processes exchange and add gradients; bf16 buffers are sent as they are",
    choices<DType>({{"fp32", DType::f32}, {"bf16", DType::bf16}}));
  f("compress", c.compress, "code in which processes send gradients; auto = int8 if the link between them is slow",
    choices<GradientCompression>({{"none", GradientCompression::none},
                                  {"auto", GradientCompression::automatic},
                                  {"bf16", GradientCompression::bf16},
                                  {"int8", GradientCompression::int8},
                                  {"fp8", GradientCompression::fp8},
                                  {"sparse", GradientCompression::sparse},
                                  {"topk", GradientCompression::topk}}),
    docs_page("parallelism.md#compressed-gradients"));
  f("compress_top", c.compress_top, "topk: share of the gradients that is sent, the largest of every 1024",
    in_range(1e-6, 1.0), docs_page("parallelism.md#compressed-gradients"));
}

void island_fields(ParallelConfig& c, Fields& f) {
  f("islands", c.islands,
    "groups of processes that train alone between combinations of their weights; 0 = one per node",
    in_range(0, kMaxProcesses), docs_page("parallelism.md#islands-that-train-alone"));
  f("local_steps", c.local_steps,
    "steps after which an outer optimizer combines the islands' weights; 0 = no outer optimizer",
    in_range(0, 1'000'000), docs_page("parallelism.md#islands-that-train-alone"));
  f("outer_lr", c.outer_lr, "learning rate of the outer optimizer", in_range(1e-6, 10),
    docs_page("parallelism.md#islands-that-train-alone"));
  f("outer_momentum", c.outer_momentum, "Nesterov momentum of the outer optimizer", in_range(0, 0.9999));
  f("outer_bits", c.outer_bits,
    "bits of each weight difference that islands send: 32, or 8, 4 or 2 with error feedback",
    check_number("32, 8, 4 or 2", [](long double x) { return x == 32 || x == 8 || x == 4 || x == 2; }), in_range(2, 32),
    docs_page("parallelism.md#islands-that-train-alone"));
  f("outer_fragments", c.outer_fragments, "fragments of the model, which are combined at different steps",
    in_range(1, 1000), docs_page("parallelism.md#islands-that-train-alone"));
  f("outer_delay", c.outer_delay,
    "steps during which messages between islands are under way; 1 hides them behind the next step", in_range(0, 1),
    docs_page("parallelism.md#islands-that-train-alone"));
}

}  // namespace

void ParallelConfig::fields(Fields& f) {
  f("dp", dp, "replicas, each with a share of the sequences; 0 = as many as the number of processes allows",
    in_range(0, kMaxProcesses));
  f("cp", cp, "processes that share each sequence (context parallelism); 0 = all that dp and tp leave",
    in_range(0, kMaxProcesses), word("auto", kAutoDegree), docs_page("parallelism.md#context-parallelism"));
  f("tp", tp, "processes that shard each layer's matrices (tensor parallelism)", in_range(1, kMaxProcesses),
    word("auto", kAutoDegree));
  f("pp", pp, "stages of blocks, through which micro-batches pass (pipeline parallelism)", in_range(1, kMaxProcesses),
    docs_page("parallelism.md#pipeline-stages"));
  f("pp_order", pp_order,
    "order of a stage's actions: 1f1b, eager_1f1b (hides messages), interleaved, or by pp_parts (auto)",
    choices<PipelineOrder>({{"auto", PipelineOrder::automatic},
                            {"1f1b", PipelineOrder::one_f_one_b},
                            {"eager_1f1b", PipelineOrder::eager_1f1b},
                            {"interleaved", PipelineOrder::interleaved}}),
    docs_page("parallelism.md#pipeline-stages"));
  f("pp_parts", pp_parts, "parts of the model in each stage; several shorten the wait at the start and end of a step",
    in_range(1, kMaxProcesses), docs_page("parallelism.md#pipeline-stages"));
  f("pp_slices", pp_slices, "slices of each sequence, which pass through the stages one after another",
    in_range(1, kMaxSlices), docs_page("parallelism.md#slices-of-sequences"));
  f("pp_division", pp_division, "blocks of each part of the model, in order; empty = parts with about equal FLOPs",
    in_range(1, kMaxProcesses), at_most_items(kMaxProcesses), docs_page("parallelism.md#pipeline-stages"));
  context_fields(*this, f);
  f("zero", zero, "what replicas shard: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights",
    in_range(0, 3), word("auto", kAutoDegree), docs_page("parallelism.md#zero-what-the-replicas-share"));
  gradient_fields(*this, f);
  island_fields(*this, f);
  f("chosen", chosen, "keys that auto chose, written by a run; chosen again if the number of processes changes",
    one_of({"dp", "cp", "tp", "zero", "cp_schedule", "offload", "compress"}), at_most_items(7),
    docs_page("parallelism.md#a-chosen-layout"));
}

bool ParallelConfig::is_open(int world) const {
  const bool chosen_layout = std::ranges::any_of(chosen, [](const std::string& key) { return key != "compress"; });
  return is_automatic() || (chosen_layout && islands * pp * dp * cp * tp != world);
}

RingOptions ParallelConfig::ring_options(const std::vector<int>& nodes) const {
  return {.prefetch = cp_prefetch,
          .per_node = cp_ranks_per_node > 0 ? static_cast<int>(cp_ranks_per_node) : ranks_per_node(nodes),
          .message_bytes = cp_message_bytes,
          .keys = cp_keys,
          .messages = cp_messages};
}

std::string division_text(const std::vector<std::int64_t>& blocks) {
  std::vector<std::string> numbers;
  for (const std::int64_t n : blocks) numbers.push_back(str(n));
  return str("pp_division: [", joined(numbers, ", "), "]");
}

ParallelConfig without_auto(ParallelConfig c) {
  const ParallelConfig defaults;
  if (c.cp == kAutoDegree) c.cp = defaults.cp;
  if (c.tp == kAutoDegree) c.tp = defaults.tp;
  if (c.zero == kAutoDegree) c.zero = defaults.zero;
  if (c.compress == GradientCompression::automatic) c.compress = defaults.compress;
  return c;
}

}  // namespace ring
