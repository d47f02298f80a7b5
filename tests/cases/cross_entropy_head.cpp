#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "kernels/cross_entropy.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

struct HeadSetting {
  std::string name;
  std::int64_t n, width, vocab, padding = 0;  // w has vocab + padding rows
  int ignore_every = 0;                       // every n-th token is ignored; 1: all
  bool weighted = false;
  float z_loss = 0, scale = 1;
  double spread = 1;  // scale of x and w: logits grow with its square
  std::int64_t chunk_bytes = std::int64_t{32} << 20;
  bool bench = false;
  float soft_cap = 0;
};

std::vector<double> logits_of(const HeadSetting& s, const std::vector<Values>& in, std::int64_t n) {
  std::vector<double> logits(static_cast<std::size_t>(s.vocab));
  for (std::int64_t v = 0; v < s.vocab; ++v)
    for (std::int64_t c = 0; c < s.width; ++c)
      logits[static_cast<std::size_t>(v)] +=
          in[0][static_cast<std::size_t>(n * s.width + c)] * in[1][static_cast<std::size_t>(v * s.width + c)];
  if (s.soft_cap > 0)
    for (double& logit : logits) logit = s.soft_cap * std::tanh(logit / s.soft_cap);
  return logits;
}

std::vector<Values> head_oracle(const HeadSetting& s, const std::vector<Values>& in) {
  Values loss(static_cast<std::size_t>(s.n));
  double sum = 0;
  for (std::int64_t n = 0; n < s.n; ++n) {
    const double target = in[2][static_cast<std::size_t>(n)];
    if (target == kIgnoreTarget) continue;
    const std::vector<double> logits = logits_of(s, in, n);
    const double max = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (double l : logits) total += std::exp(l - max);
    const double lse = max + std::log(total), weight = s.weighted ? in[3][static_cast<std::size_t>(n)] : 1;
    const double value = weight * (lse - logits[static_cast<std::size_t>(target)] + s.z_loss * lse * lse);
    loss[static_cast<std::size_t>(n)] = value;
    sum += value;
  }
  return {{sum}, loss};
}

Values targets_of(const HeadSetting& s) {
  Values t;
  const RandomSite site{.seed = 2, .site = site_of(s.name)};
  for (std::int64_t n = 0; n < s.n; ++n) {
    const bool ignored = s.ignore_every > 0 && n % s.ignore_every == s.ignore_every - 1;
    const auto id = random_bits(site, static_cast<std::uint64_t>(n)) % static_cast<std::uint64_t>(s.vocab);
    t.push_back(ignored ? kIgnoreTarget : static_cast<double>(id));
  }
  return t;
}

std::vector<Var> call(const HeadSetting& s, Run& run, const std::vector<Var>& in) {
  const LossHead head{.targets = in[2].value,
                      .weights = s.weighted ? in[3].value : Tensor{},
                      .vocab = s.vocab,
                      .scale = s.scale,
                      .z_loss = s.z_loss,
                      .soft_cap = s.soft_cap,
                      .chunk_bytes = s.chunk_bytes};
  const LossOutput out = cross_entropy_head(run, in[0], in[1], head);
  return {out.sum, {out.token_loss, nullptr}};
}

OpCase make_head(const HeadSetting& s) {
  OpCase c;
  c.op = "cross_entropy_head";
  c.name = str(s.name, "_N", s.n, "_C", s.width, "_V", s.vocab);
  c.root = true;
  c.root_scale = s.scale;
  const double width = static_cast<double>(s.width), n = static_cast<double>(s.n);
  const auto rows = static_cast<double>(s.vocab + s.padding);
  c.inputs = {
      {.name = "x", .shape = {s.n, s.width}, .scale = s.spread},
      {.name = "w", .shape = {s.vocab + s.padding, s.width}, .scale = s.spread},
      {.name = "targets", .shape = {s.n}, .values = targets_of(s), .differentiable = false, .dtype = DType::i32}};
  if (s.weighted) {
    Values weights = random_values(s.name, s.n);
    for (double& w : weights) w = std::max(0.0, w);  // half of the weights are zero
    c.inputs.push_back({.name = "weights", .shape = {s.n}, .values = weights, .differentiable = false});
  }
  c.oracle = [s](const std::vector<Values>& in) { return head_oracle(s, in); };
  c.run = [s](Run& run, const std::vector<Var>& in) { return call(s, run, in); };
  c.flops = 2 * n * rows * width;
  c.backward_flops = 3 * c.flops;  // forward and backward are one pass
  c.bytes = 4 * (n * width + rows * width);
  c.backward_bytes = 2 * c.bytes;
  c.bench = s.bench;
  return c;
}

std::vector<OpCase> head_cases() {
  std::vector<OpCase> list = {
      make_head({.name = "one", .n = 1, .width = 8, .vocab = 3}),
      make_head({.name = "only_class", .n = 4, .width = 8, .vocab = 1}),
      make_head({.name = "plain", .n = 37, .width = 24, .vocab = 65, .scale = 0.125f}),
      make_head({.name = "padded", .n = 20, .width = 16, .vocab = 37, .padding = 91, .ignore_every = 3}),
      make_head({.name = "all_ignored", .n = 6, .width = 8, .vocab = 17, .ignore_every = 1}),
      make_head(
          {.name = "weighted", .n = 30, .width = 8, .vocab = 33, .padding = 3, .ignore_every = 4, .weighted = true}),
      make_head({.name = "z_loss", .n = 21, .width = 16, .vocab = 50, .weighted = true, .z_loss = 0.1f, .scale = 0.5f}),
      make_head({.name = "soft_cap",
                 .n = 21,
                 .width = 16,
                 .vocab = 50,
                 .padding = 6,
                 .ignore_every = 4,
                 .z_loss = 0.1f,
                 .scale = 0.5f,
                 .chunk_bytes = 20 * 56 * 4,
                 .soft_cap = 1.5f}),
      make_head({.name = "chunks_of_one", .n = 19, .width = 8, .vocab = 40, .ignore_every = 5, .chunk_bytes = 1}),
      make_head({.name = "chunks", .n = 50, .width = 8, .vocab = 40, .padding = 8, .chunk_bytes = 20 * 48 * 4}),
      make_head({.name = "threads", .n = 700, .width = 8, .vocab = 67, .scale = 0.01f}),
      make_head({.name = "chars", .n = 768, .width = 128, .vocab = 65, .scale = 1.0f / 768, .bench = true}),
      make_head({.name = "words", .n = 512, .width = 256, .vocab = 32000, .scale = 1.0f / 512, .bench = true}),
  };
  OpCase large =
      make_head({.name = "large_logits", .n = 12, .width = 8, .vocab = 40, .spread = 30});  // up to about +-3000
  large.grad_tolerance = 1e-3;
  large.half = false;  // bf16 logits of this size are 16 apart
  list.push_back(large);
  return list;
}

const AddCases added_heads(head_cases);

}  // namespace
}  // namespace ring::test
