#include "trainer/evaluate.h"

#include <cmath>
#include <numbers>

#include "trainer/world.h"

namespace ring {

double Evaluation::perplexity() const { return std::exp(loss); }

double Evaluation::bits_per_byte(double bytes_per_token) const { return loss / std::numbers::ln2 / bytes_per_token; }

Evaluation evaluate(const Decoder& model, const Context& ctx, const ValidationSet& set, Communicator& comm) {
  double sum = 0;
  std::int64_t tokens = 0;
  const std::int64_t length = model.config().context;
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    const Batch b = set.batch(i);
    Run run{ctx};
    LossHead head;
    head.targets = from_host(b.targets, ctx.stream);
    const Sequences seqs = Sequences::uniform(static_cast<std::int64_t>(b.sample_indices.size()), length, ctx);
    const LossOutput out = model.loss(run, from_host(b.inputs, ctx.stream), seqs, head);
    sum += to_host<float>(out.sum.value, ctx.stream)[0];
    tokens += b.valid_targets;
  }
  // Ranks exchange floats: means and counts survive that, sums of millions would lose digits.
  const double mean = tokens ? sum / static_cast<double>(tokens) : 0.0;
  const double all = sum_over_ranks(comm, ctx.stream, {static_cast<float>(tokens)})[0];
  const double share = all > 0 ? static_cast<double>(tokens) / all : 0.0;
  const float loss = sum_over_ranks(comm, ctx.stream, {static_cast<float>(mean * share)})[0];
  return {comm.size() == 1 ? mean : loss, static_cast<std::int64_t>(all)};
}

}  // namespace ring
