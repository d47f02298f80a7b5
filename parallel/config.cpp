#include "parallel/config.h"

#include "core/fields.h"
#include "job/environment.h"

namespace ring {

void ParallelConfig::fields(Fields& f) {
  f("dp", dp, "replicas that each take a share of the sequences; 0 = as many as the processes make",
    in_range(0, kMaxProcesses));
  f("cp", cp,
    "processes among which each sequence is cut (context parallelism); 0 = as many as dp and tp leave, where dp: 0 is "
    "then 1",
    in_range(0, kMaxProcesses));
  f("tp", tp, "processes among which each layer's matrices are cut (tensor parallelism)", in_range(1, kMaxProcesses));
  f("pp", pp, "pipeline stages, which do not exist yet: 1", in_range(1, kMaxProcesses));
  f("cp_layout", cp_layout,
    "who holds what of a sequence: zigzag: rank i of P has chunks i and 2P - 1 - i of 2P, which balances dense causal "
    "attention; contiguous: one chunk; auto: zigzag where every layer is dense, or pools go around a ring or by gather",
    choices<ContextLayoutChoice>({{"auto", ContextLayoutChoice::automatic},
                                  {"zigzag", ContextLayoutChoice::zigzag},
                                  {"contiguous", ContextLayoutChoice::contiguous}}));
  f("cp_schedule", cp_schedule,
    "how queries meet the keys of other ranks: ring: from rank to rank, while others are computed with; gather: all "
    "keys to every rank; all_to_all: all tokens of some heads to every rank (cp must divide the KV heads); auto: the "
    "fastest, measured on GPUs, else ring; where keys are pooled, blocks are selected, or kept by importance, "
    "all_to_all if the heads divide, else ring",
    choices<ContextSchedule>({{"auto", ContextSchedule::automatic},
                              {"ring", ContextSchedule::ring},
                              {"gather", ContextSchedule::gather},
                              {"all_to_all", ContextSchedule::all_to_all}}));
  f("cp_keys", cp_keys,
    "ring and gather, blocks that are selected (pattern: content, learned): referenced: only keys travel that a rank's "
    "queries selected, for which the host waits in each layer until they have; all: whatever they might select; auto: "
    "referenced on CPUs, where that is no wait, all on GPUs",
    choices<ContextKeys>(
        {{"auto", ContextKeys::automatic}, {"all", ContextKeys::all}, {"referenced", ContextKeys::referenced}}));
  f("cp_prefetch", cp_prefetch, "steps of the ring whose keys are on their way before they are needed",
    in_range(0, 1024));
  f("cp_message_mb", cp_message_mb,
    "ring, dense and block-sparse attention: largest message (gradients of keys and values, fp32) in MiB; where it "
    "would be longer, the ring turns for one group of KV heads after the other, and holds the keys and sums of one "
    "group only; a group has at least one head",
    in_range(1, 1 << 20));
  f("cp_ranks_per_node", cp_ranks_per_node,
    "ring: ranks of the cp axis on each node, a divisor of cp; 0 = as they are placed", in_range(0, kMaxProcesses));
  f("zero", zero,
    "what the replicas share instead of keeping copies: 0 nothing, 1 optimizer states, 2 also gradients, 3 also "
    "weights "
    "(ZeRO, Rajbhandari et al. 2020)",
    in_range(0, 3));
  f("reduce", reduce, "type in which gradients travel and are added between processes; bf16 buffers travel as they are",
    choices<DType>({{"fp32", DType::f32}, {"bf16", DType::bf16}}));
}

RingOptions ParallelConfig::ring(const std::vector<int>& nodes) const {
  return {.prefetch = cp_prefetch,
          .per_node = cp_ranks_per_node > 0 ? static_cast<int>(cp_ranks_per_node) : ranks_per_node(nodes),
          .message_bytes = cp_message_mb << 20,
          .keys = cp_keys};
}

}  // namespace ring
