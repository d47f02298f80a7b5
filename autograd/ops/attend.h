#pragma once
// Attention: over whole sequences by the kernels, over sharded ones by the run's context exchange.

#include <utility>

#include "autograd/ops/current_spans.h"
#include "comm/communicator.h"
#include "kernels/attention/pools/pooled_attention.h"
#include "kernels/attention/selected/block_select.h"

namespace ring {

// Rate of attention dropout and the counter of its RNG, except the counter's tensors (rows, state), which are saved
// separately.
struct DropoutAddress {
  float rate;
  RandomSite site;
  std::int64_t first_row, first_head;

  AttentionDropout with(const Tensor& rows, const Tensor& state) const {
    if (rate == 0) return {};
    return {rate, site, first_row, first_head, rows, state};
  }
};
inline DropoutAddress dropout_address(const Run& run, const AttentionOptions& o, std::int64_t heads) {
  return {.rate = o.dropout,
          .site = {.seed = run.seed, .step = run.step, .site = o.dropout_site},
          .first_row = run.first_row,
          .first_head = is_tensor_parallel(run) ? run.layout.tp->rank() * heads : 0};
}

inline void check_exchange(const Sequences& sequences, const ContextExchange* exchange) {
  RING_CHECK(!sequences.shards || exchange, "attention: the sequences are sharded among ", sequences.shards->ranks(),
             " ranks, but the run has no exchange (RunLayout::cp)");
}

// Launches `call` with the sequences' documents or, in a captured step, with those of each replay (current_spans.h).
template <class Args>
void launch_with_spans(const Sequences& sequences, const Args& args, void (*call)(Args, const ExecContext&),
                       const ExecContext& ctx) {
  const auto launch = [call](Args a, const std::vector<Span>& spans, const ExecContext& context) {
    a.pairs.queries = a.pairs.keys = spans;
    call(std::move(a), context);
  };
  launch_with_spans(CallSpans(sequences), args, launch, ctx);
}

// Runs attention with the sequences' spans. Returns the selection: the given one, or a new one if the pattern selects.
inline BlockSelection attend(PooledAttention args, const Sequences& sequences, ContextExchange* exchange,
                             const ExecContext& ctx, const AttentionWatch& watch = {}) {
  check_exchange(sequences, exchange);
  if (sequences.shards) return exchange->forward(args, sequences.shards, ctx, watch);
  Attention& a = args.pairs;
  if (a.pattern.selects() && !a.selection.kept.defined())
    a.selection = select_blocks(a.pattern, a.q, a.k, a.scale, sequences.spans_on(ctx.stream), ctx);
  launch_with_spans(sequences, args, pooled_attention, ctx);
  if (!watch) return a.selection;
  a.queries = a.keys = sequences.spans_on(ctx.stream);
  watch(args, {0, a.k.dim(1)});
  return a.selection;
}
inline void attend_backward(const PooledAttentionBackward& args, const Sequences& sequences, ContextExchange* exchange,
                            const ExecContext& ctx) {
  check_exchange(sequences, exchange);
  if (sequences.shards) return exchange->backward(args, sequences.shards, ctx);
  launch_with_spans(sequences, args, pooled_attention_backward, ctx);
}

}  // namespace ring
