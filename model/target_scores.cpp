#include "model/target_scores.h"

#include <algorithm>
#include <cmath>

#include "comm/communicator.h"
#include "kernels/matmul.h"
#include "kernels/sliced_cross_entropy.h"
#include "model/scopes.h"

namespace ring {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{64} << 20;  // bytes of logits held at a time

Tensor all_rows(const Run& run, const Tensor& hidden) {
  if (!is_tensor_parallel(run)) return hidden;
  const Tensor all = run.ctx.empty({hidden.dim(0) * run.layout.tp->size(), hidden.dim(1)}, hidden.dtype());
  run.layout.tp->all_gather(all, hidden, run.ctx.stream.record()).wait(run.ctx.stream);
  return all;
}

// Returns the logit statistics of each tensor-parallel slice's part of the vocabulary, [slices,n,kLogitStatistics].
std::vector<float> statistics_of(const Run& run, const Tensor& x, const Tensor& w, const Tensor& targets,
                                 const ModelConfig& model) {
  const ExecContext& ctx = run.ctx;
  const std::int64_t n = x.dim(0), first = is_tensor_parallel(run) ? run.layout.tp->rank() * w.dim(0) : 0;
  const Tensor logits = ctx.empty({n, w.dim(0)}), own = ctx.empty({n, kLogitStatistics});
  matmul_kernel({.a = x, .b = w, .c = logits, .transpose_b = true}, ctx);
  const auto cap = static_cast<float>(model.logit_soft_cap);
  if (cap > 0) activate_kernel({.x = logits, .y = logits, .kind = Activation::soft_cap, .cap = cap}, ctx);
  logit_statistics_kernel({.logits = logits, .targets = targets, .out = own, .first = first, .vocab = model.vocab_size},
                          ctx);
  if (!is_tensor_parallel(run)) return to_host<float>(own, ctx.stream);
  const Tensor all = ctx.empty({run.layout.tp->size(), n, kLogitStatistics});
  run.layout.tp->all_gather(all, own, ctx.stream.record()).wait(ctx.stream);
  return to_host<float>(all, ctx.stream);
}

// Computes log-sum-exp over the parts: m + log(sum of s_i exp(m_i - m)), where m_i is part i's largest logit and m the
// largest of all.
void add_scores(const std::vector<float>& statistics, std::size_t rows, TargetScores& out) {
  const std::size_t width = static_cast<std::size_t>(kLogitStatistics), parts = statistics.size() / (rows * width);
  for (std::size_t i = 0; i < rows; ++i) {
    const auto at = [&](std::size_t part) { return statistics.data() + (part * rows + i) * width; };
    double top = at(0)[0], sum = 0, target = 0;
    for (std::size_t p = 1; p < parts; ++p) top = std::max<double>(top, at(p)[0]);
    for (std::size_t p = 0; p < parts; ++p) {
      sum += at(p)[1] * std::exp(at(p)[0] - top);
      target += at(p)[2];
    }
    const double score = target - top - std::log(sum);
    if (!std::isfinite(score)) fail("the model's logits are not finite: its weights are damaged");
    out.log_probability.push_back(score);
    out.likeliest.push_back(target >= top);
  }
}

}  // namespace

TargetScores target_scores(const Model& model, Run& run, const Tensor& hidden, const std::vector<std::int32_t>& rows,
                           const std::vector<std::int32_t>& targets) {
  RING_CHECK(rows.size() == targets.size(), "scores of ", targets.size(), " tokens in ", rows.size(), " rows");
  const ScopeGuard scope = run.enter({scopes::loss_head});
  TargetScores out;
  if (rows.empty()) return out;
  const Tensor w = model.vocab_tables().back()->var.value;
  const Tensor x = embedding(run, from_host(rows, run.ctx.stream), Var{all_rows(run, hidden), nullptr}).value;
  const Tensor wanted = from_host(targets, run.ctx.stream);
  const std::int64_t row_bytes = w.dim(0) * static_cast<std::int64_t>(sizeof(float)),
                     chunk = std::max<std::int64_t>(1, kChunkBytes / row_bytes);
  for (std::int64_t begin = 0; begin < x.dim(0); begin += chunk) {
    const std::int64_t n = std::min(chunk, x.dim(0) - begin);
    add_scores(statistics_of(run, x.narrow(0, begin, n), w, wanted.narrow(0, begin, n), model.config()),
               static_cast<std::size_t>(n), out);
  }
  return out;
}

}  // namespace ring
