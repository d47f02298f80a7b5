#include "trainer/evaluate.h"

#include <cmath>
#include <numbers>

#include "comm/host.h"
#include "comm/run_phase.h"

namespace ring {

double Evaluation::perplexity() const { return std::exp(loss); }

double Evaluation::bits_per_byte(double bytes_per_token) const { return loss / std::numbers::ln2 / bytes_per_token; }

Sequences sequences_of(const Batch& b, std::int64_t context, const ExecContext& ctx) {
  if (b.positions.empty()) return Sequences::uniform(static_cast<std::int64_t>(b.sample_indices.size()), context, ctx);
  return Sequences::packed(b.starts, b.lengths, context, positions_of(b, ctx));
}

Tensor positions_of(const Batch& b, const ExecContext& ctx) {
  return b.positions.empty() ? Tensor{} : from_host(b.positions, ctx.stream);
}

Evaluation evaluate(const Decoder& model, const ExecContext& ctx, const ValidationSet& set, Communicator& comm,
                    ContextBatches* parts, Communicator* tp) {
  double sum = 0;
  std::int64_t tokens = 0;
  const std::int64_t length = set.options().context;
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    enter(RunPhase::validate);  // a sign of progress for each batch
    const Batch b = parts ? parts->part(set.batch(i)) : set.batch(i);
    Run run{.ctx = ctx, .tp = tp};
    if (parts) parts->prepare(run, static_cast<std::int64_t>(b.sample_indices.size()));
    LossHead head;
    head.targets = from_host(b.targets, ctx.stream);
    const Sequences seqs = parts ? parts->sequences(b, positions_of(b, ctx), ctx) : sequences_of(b, length, ctx);
    const LossOutput out = model.loss(run, from_host(b.inputs, ctx.stream), seqs, head);
    sum += to_host<float>(out.sum.value, ctx.stream)[0];
    tokens += b.valid_targets;
  }
  if (tp && tp->rank() > 0) sum = 0, tokens = 0;  // every slice has the same: they count once
  const double all = sum_host(comm, static_cast<double>(tokens));
  const double total = sum_host(comm, sum);
  return {all > 0 ? total / all : 0.0, static_cast<std::int64_t>(all)};
}

}  // namespace ring
