#include "evaluate/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "comm/host.h"
#include "core/stop_signal.h"
#include "job/run_phase.h"
#include "kernels/group_sums.h"
#include "kernels/matmul.h"

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

StopEvaluation stop_on(const StopSignal& signal, Communicator& comm) {
  return [&signal, &comm] {
    std::array<double, 1> vote{signal.requested() ? 1.0 : 0.0};
    all_reduce_host(comm, vote, Reduce::max);
    return vote[0] > 0;
  };
}

namespace {

// Sums over the batches of this rank.
struct Sums {
  double loss = 0, correct = 0;
  std::int64_t tokens = 0;
  std::vector<SourceLoss> sources;
  std::vector<double> batch_losses;
};

void add_sources(Sums& sums, const Batch& b, const Tensor& token_loss, const ExecContext& ctx) {
  const std::size_t corpora = sums.sources.size();
  const Tensor losses = ctx.zeros({static_cast<std::int64_t>(corpora)});
  group_sums_kernel({token_loss, from_host(b.sources, ctx.stream), losses}, ctx);
  const std::vector<float> values = to_host<float>(losses, ctx.stream);
  const std::vector<std::int64_t> targets = count_targets_by_source(b, corpora);
  for (std::size_t c = 0; c < corpora; ++c) {
    sums.sources[c].sum += static_cast<double>(values[c]);
    sums.sources[c].targets += static_cast<double>(targets[c]);
  }
}

// Returns the number of ones in a tensor of zeros and ones. Exact up to 2^24.
double count_of(const Tensor& flags, const ExecContext& ctx) {
  const Tensor sum = ctx.empty({1});
  column_sum_kernel({.x = flags.view({flags.numel(), 1}), .out = sum}, ctx);
  return static_cast<double>(to_host<float>(sum, ctx.stream)[0]);
}

Evaluation over_all(const Sums& sums, Communicator& comm) {
  std::vector<double> all{static_cast<double>(sums.tokens), sums.loss, sums.correct};
  for (const SourceLoss& s : sums.sources) all.insert(all.end(), {s.sum, s.targets});
  all_reduce_host(comm, all, Reduce::sum);
  const double tokens = std::max(all[0], 1.0);
  Evaluation e{all[1] / tokens, all[2] / tokens, static_cast<std::int64_t>(all[0]), {}, {}, sums.batch_losses};
  for (std::size_t i = 3; i < all.size(); i += 2) e.sources.push_back({all[i], all[i + 1]});
  return e;
}

struct Evaluator {
  const Model& model;
  const ExecContext& ctx;
  std::int64_t length;  // tokens per row
  ContextBatches* parts;
  Communicator* tp;

  // Adds the results of a batch, or of a chunk of it. Returns the sum of the losses.
  double add(const Batch& b, int chunk, Sums& sums) const {
    enter(RunPhase::validate);  // shows in each batch that this process makes progress
    Run run{.ctx = ctx, .layout = {.tp = tp}};
    LossHead head;
    head.targets = from_host(b.targets, ctx.stream);
    head.correct = true;
    const Sequences seqs = parts ? parts->sequences(b, positions_of(b, ctx), ctx, chunk) : sequences_of(b, length, ctx);
    if (parts) parts->set_up_run(run, static_cast<std::int64_t>(b.sample_indices.size()), seqs, chunk);
    const ChunkedContext::Chunk computing(parts ? parts->chunked() : nullptr, seqs.shards,
                                          ChunkedContext::Keep::for_forward);
    const LossOutput out = model.loss(run, from_host(b.inputs, ctx.stream), seqs, head);
    const double loss = to_host<float>(out.sum.value, ctx.stream)[0];
    sums.loss += loss;
    sums.correct += count_of(out.correct, ctx);
    sums.tokens += b.valid_targets;
    if (!sums.sources.empty()) add_sources(sums, b, out.token_loss, ctx);
    return loss;
  }
};

}  // namespace

Evaluation evaluate(const Model& model, const ExecContext& ctx, const ValidationSet& set, Communicator& comm,
                    ContextBatches* parts, Communicator* tp, const StopEvaluation& stop) {
  Sums sums;
  if (set.corpora() > 1) sums.sources.resize(set.corpora());
  const Evaluator evaluator{model, ctx, set.options().context, parts, tp};
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    if (stop && stop()) throw EvaluationStopped{};
    const Batch b = parts ? parts->part(set.batch(i)) : set.batch(i);
    double loss = 0;
    for (int chunk = 0; chunk < (parts ? parts->chunks() : 1); ++chunk)
      loss += parts && parts->chunked() ? evaluator.add(parts->chunk_of(b, chunk), chunk, sums)
                                        : evaluator.add(b, chunk, sums);
    sums.batch_losses.push_back(loss / std::max<double>(1, static_cast<double>(b.valid_targets)));
  }
  // Tensor-parallel ranks have the same losses, which are counted once. Other pipeline stages have none.
  if ((tp && tp->rank() > 0) || !model.has_head())
    sums = {0, 0, 0, std::vector<SourceLoss>(sums.sources.size()), sums.batch_losses};
  return over_all(sums, comm);
}

}  // namespace ring
