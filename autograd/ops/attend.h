#pragma once
// Attention over whole sequences by the kernels, over parts of them by the run's context exchange.

#include "autograd/ops.h"
#include "comm/communicator.h"
#include "kernels/attention/pooled_attention.h"

namespace ring {

// Where dropout's masks are, but for the tensors of their address: these are saved.
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
          .first_head = sliced(run) ? run.tp->rank() * heads : 0};
}

inline void check_exchange(const Sequences& sequences, const ContextExchange* exchange) {
  RING_CHECK(!sequences.shards || exchange, "attention: the sequences are cut among ", sequences.shards->ranks(),
             " ranks, but the run has no exchange (Run::cp)");
}

// The spans are filled in, and the selection, where the pattern selects and there is none yet; it is returned.
inline BlockSelection attend(Attention args, const Sequences& sequences, ContextExchange* exchange,
                             const ExecContext& ctx, const AttentionWatch& watch = {}) {
  check_exchange(sequences, exchange);
  if (sequences.shards) return exchange->forward(args, sequences.shards, ctx, watch);
  args.queries = args.keys = sequences.spans();
  if (!args.selection.bits.defined()) args.selection = select_blocks(args.pattern, args.q, args.k, args.queries, ctx);
  pooled_attention(args, ctx);
  if (watch) watch(args, {0, args.k.dim(1)});
  return args.selection;
}
inline void attend_backward(AttentionBackward args, const Sequences& sequences, ContextExchange* exchange,
                            const ExecContext& ctx) {
  check_exchange(sequences, exchange);
  if (sequences.shards) return exchange->backward(args, sequences.shards, ctx);
  args.queries = args.keys = sequences.spans();
  pooled_attention_backward(std::move(args), ctx);
}

}  // namespace ring
