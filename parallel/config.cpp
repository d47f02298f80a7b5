#include "parallel/config.h"

#include "core/fields.h"
#include "job/environment.h"

namespace ring {

void ParallelConfig::fields(Fields& f) {
  f("dp", dp, "replicas, each with a share of the sequences; 0 = as many as the number of processes allows",
    in_range(0, kMaxProcesses));
  f("cp", cp,
    "processes that share each sequence (context parallelism); 0 = all that dp and tp leave; dp: 0 then means 1",
    in_range(0, kMaxProcesses));
  f("tp", tp, "processes that shard each layer's matrices (tensor parallelism)", in_range(1, kMaxProcesses));
  f("pp", pp, "pipeline stages; must be 1, since they are not supported yet", in_range(1, kMaxProcesses));
  f("cp_layout", cp_layout,
    "which part of a sequence each rank holds. zigzag: rank i of P has chunks i and 2P - 1 - i of 2P, which balances "
    "dense causal attention; contiguous: one chunk; auto: zigzag if every layer is dense, or if pools are exchanged by "
    "ring or gather",
    choices<ContextLayoutChoice>({{"auto", ContextLayoutChoice::automatic},
                                  {"zigzag", ContextLayoutChoice::zigzag},
                                  {"contiguous", ContextLayoutChoice::contiguous}}));
  f("cp_schedule", cp_schedule,
    "how queries meet the keys of other ranks. ring: keys pass from rank to rank during computation; gather: every "
    "rank gets all keys; all_to_all: every rank gets all tokens of some heads (cp must divide the KV heads); auto: the "
    "fastest as measured on GPUs, else ring; for pooled keys and for blocks selected or kept by importance, all_to_all "
    "if the heads divide, else ring",
    choices<ContextSchedule>({{"auto", ContextSchedule::automatic},
                              {"ring", ContextSchedule::ring},
                              {"gather", ContextSchedule::gather},
                              {"all_to_all", ContextSchedule::all_to_all}}));
  f("cp_keys", cp_keys,
    "keys that ring and gather send for selected blocks (pattern: content, learned). referenced: only those that a "
    "rank's queries selected; the host waits for the selection in each layer; all: all that they might select; auto: "
    "referenced on CPUs, where this causes no wait, all on GPUs",
    choices<ContextKeys>(
        {{"auto", ContextKeys::automatic}, {"all", ContextKeys::all}, {"referenced", ContextKeys::referenced}}));
  f("cp_prefetch", cp_prefetch, "ring: number of steps whose keys are sent ahead of their use", in_range(0, 1024));
  f("cp_message_mb", cp_message_mb,
    "ring, dense and block-sparse attention: maximum message (gradients of keys and values, fp32) in MiB. If it would "
    "be larger, the ring turns once per group of KV heads and holds the keys and sums of only one group; a group has "
    "at least one head",
    in_range(1, 1 << 20));
  f("cp_ranks_per_node", cp_ranks_per_node,
    "ring: ranks of the cp axis on each node, a divisor of cp; 0 = as actually placed", in_range(0, kMaxProcesses));
  f("zero", zero,
    "what replicas shard instead of keeping copies: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights "
    "(ZeRO, Rajbhandari et al. 2020)",
    in_range(0, 3));
  f("reduce", reduce, "type in which processes exchange and add gradients; bf16 buffers are sent as they are",
    choices<DType>({{"fp32", DType::f32}, {"bf16", DType::bf16}}));
}

RingOptions ParallelConfig::ring(const std::vector<int>& nodes) const {
  return {.prefetch = cp_prefetch,
          .per_node = cp_ranks_per_node > 0 ? static_cast<int>(cp_ranks_per_node) : ranks_per_node(nodes),
          .message_bytes = cp_message_mb << 20,
          .keys = cp_keys};
}

}  // namespace ring
