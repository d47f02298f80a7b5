#pragma once
// Attention over whole sequences by the kernels, over parts of them by the run's context exchange.

#include "autograd/ops.h"
#include "kernels/attention/attention.h"

namespace ring {

inline void check_exchange(const Sequences& sequences, const ContextExchange* exchange) {
  RING_CHECK(!sequences.shards || exchange, "attention: the sequences are cut among ", sequences.shards->ranks(),
             " ranks, but the run has no exchange (Run::cp)");
}

// The spans are filled in.
inline void attend(Attention args, const Sequences& sequences, ContextExchange* exchange, const ExecContext& ctx) {
  check_exchange(sequences, exchange);
  if (sequences.shards) return exchange->forward(args, sequences.shards, ctx);
  args.queries = args.keys = sequences.spans();
  attention_kernel(args, ctx);
}
inline void attend_backward(AttentionBackward args, const Sequences& sequences, ContextExchange* exchange,
                            const ExecContext& ctx) {
  check_exchange(sequences, exchange);
  if (sequences.shards) return exchange->backward(args, sequences.shards, ctx);
  args.queries = args.keys = sequences.spans();
  attention_backward_kernel(args, ctx);
}

}  // namespace ring
