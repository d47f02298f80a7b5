#include "kernels/attention/pooled_attention.h"
#include "model/flops.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

struct Options {
  bool norm = false, rotate = true, learned_pools = false, gates = false;
};
constexpr double kEps = 1e-6f;

// x [N, width], columns [first, first + heads * dim).
Values columns(const Values& x, std::int64_t width, std::int64_t first, std::int64_t count) {
  Values out;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(width))
    out.insert(out.end(), x.begin() + static_cast<std::ptrdiff_t>(row) + first,
               x.begin() + static_cast<std::ptrdiff_t>(row) + first + count);
  return out;
}

void normalise(Values& x, const Values& w) {
  for (std::size_t at = 0; at < x.size(); at += w.size()) {
    double squares = 0;
    for (std::size_t i = 0; i < w.size(); ++i) squares += x[at + i] * x[at + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(w.size()) + kEps);
    for (std::size_t i = 0; i < w.size(); ++i) x[at + i] *= rstd * w[i];
  }
}

void rotate(Values& x, std::int64_t heads, const Values& positions, const Values& inv_freq) {
  const std::size_t half = inv_freq.size();
  for (std::size_t at = 0; at < x.size(); at += 2 * half)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = positions[at / (2 * half) / static_cast<std::size_t>(heads)] * inv_freq[i];
      const double a = x[at + i], b = x[at + i + half];
      x[at + i] = a * std::cos(angle) - b * std::sin(angle);
      x[at + i + half] = a * std::sin(angle) + b * std::cos(angle);
    }
}

// Inputs: qkv, positions, inv_freq, then the norms' weights, then those of pools. Outputs: attention, final keys, final
// values.
std::vector<Values> oracle(AttentionShape a, const Options& o, const std::vector<Values>& in) {
  if (o.learned_pools) a.pooling = in[o.norm ? 5 : 3];
  if (o.gates) a.gates = in.back();
  const std::int64_t q_width = a.heads * a.dim, k_width = a.kv_heads * a.dim, width = q_width + 2 * k_width;
  Values q = columns(in[0], width, 0, q_width), k = columns(in[0], width, q_width, k_width);
  const Values v = columns(in[0], width, q_width + k_width, k_width);
  if (o.norm) {
    normalise(q, in[3]);
    normalise(k, in[4]);
  }
  if (o.rotate) {
    rotate(q, a.heads, in[1], in[2]);
    rotate(k, a.kv_heads, in[1], in[2]);
  }
  return {attention_oracle(a, q, k, v).out, k, v};
}

Var packed(const Tensor& t, const ExecContext& ctx) {
  const Tensor out = ctx.empty({t.numel()}, t.dtype());
  const std::size_t row = static_cast<std::size_t>(t.dim(2)) * size_of(t.dtype());
  std::byte* to = out.raw();
  for (std::int64_t n = 0; n < t.dim(0); ++n)
    for (std::int64_t h = 0; h < t.dim(1); ++h, to += row)
      ctx.stream.impl().copy(to, t.narrow(0, n, 1).narrow(1, h, 1).raw(), row);
  return {out, nullptr};
}

std::vector<Var> run_op(Run run, const std::vector<Var>& in, const AttentionShape& a, const Options& o) {
  SelfAttention options{.heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.dim};
  options.attention = {static_cast<float>(a.scale), a.pattern, a.dropout.rate, a.dropout.site.site};
  if (o.rotate) options.inv_freq = in[2].value;
  if (o.norm) {
    options.q_norm = in[3];
    options.k_norm = in[4];
  }
  if (o.learned_pools) options.pooling = in[o.norm ? 5 : 3];
  if (o.gates) options.pool_gates = in.back();
  run.seed = a.dropout.site.seed, run.step = a.dropout.site.step, run.first_row = a.dropout.first_row;
  Tensor keys, values;
  options.keys = &keys;
  options.values = &values;
  const Var y = self_attention(run, in[0], {.offsets = a.offsets, .positions = in[1].value, .rows = a.rows}, options);
  return {y, packed(keys, run.ctx), packed(values, run.ctx)};
}

OpCase make(const std::string& name, const AttentionShape& a, const Options& o) {
  OpCase c;
  c.op = "self_attention";
  c.name = name;
  Values positions, inv_freq;
  for (std::size_t b = 0; b + 1 < a.offsets.size(); ++b)
    for (std::int32_t t = a.offsets[b]; t < a.offsets[b + 1]; ++t) positions.push_back(t - a.offsets[b] + 3);
  for (std::int64_t i = 0; i < a.dim / 2; ++i)
    inv_freq.push_back(std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(a.dim)));
  const std::int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
  c.inputs = {{.name = "qkv", .shape = {a.tokens(), width}},
              {.name = "positions", .shape = {a.tokens()}, .values = positions, .dtype = DType::i32},
              {.name = "inv_freq", .shape = {a.dim / 2}, .values = inv_freq, .differentiable = false}};
  if (o.norm) {
    c.inputs.push_back({.name = "q_norm", .shape = {a.dim}});
    c.inputs.push_back({.name = "k_norm", .shape = {a.dim}});
  }
  if (o.learned_pools)
    c.inputs.push_back({.name = "pooling", .shape = {pool_weights_numel(a.pattern, a.kv_heads, a.dim)}});
  if (o.gates) c.inputs.push_back({.name = "gates", .shape = {a.tokens(), a.heads}, .scale = 2});
  c.oracle = [a, o](const std::vector<Values>& in) { return oracle(a, o, in); };
  c.run = [a, o](Run& run, const std::vector<Var>& in) { return run_op(run, in, a, o); };
  c.flops = 4 * attention_pairs(a) * static_cast<double>(a.heads * a.dim);
  c.backward_flops = 2.5 * c.flops;
  c.bytes = 4.0 * static_cast<double>(a.tokens() * (width + a.heads * a.dim));
  c.backward_bytes = 8.0 * static_cast<double>(a.tokens() * (width + a.heads * a.dim));
  return c;
}

std::vector<OpCase> cases() {
  const std::vector<std::int32_t> ragged = offsets_of({5, 1, 70});
  std::vector<OpCase> all = {
      make("plain", {ragged, 2, 2, 8, 0.4, dense()}, {.norm = false, .rotate = false}),
      make("rope", {ragged, 2, 2, 16, 0.3, dense()}, {.norm = false, .rotate = true}),
      make("rope_gqa_full", {ragged, 4, 2, 8, 0.3, dense(false)}, {.norm = false, .rotate = true}),
      make("qk_norm", {ragged, 2, 1, 16, 0.3, dense()}, {.norm = true, .rotate = false}),
      make("qk_norm_rope_gqa", {ragged, 6, 2, 24, 0.2, dense()}, {.norm = true, .rotate = true}),
      make("rope_window_packed", {ragged, 4, 2, 16, 0.3, window(20, 2), {0, 6}}, {.norm = false, .rotate = true}),
      make("qk_norm_rope_dilated_packed",
           {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, dilated({{20, 1}, {40, 2}}, false, 1), {0, 80}},
           {.norm = true, .rotate = true}),
      make("rope_blocks", {offsets_of({200}), 2, 2, 8, 0.3, block_sparse(64, {{.local = 1, .first = 1}})},
           {.norm = false, .rotate = true}),
      make("qk_norm_rope_content_gqa",
           {offsets_of({330, 40}), 4, 2, 8, 0.3, block_sparse(64, {{.kind = BlockRuleKind::content, .keep = 3}})},
           {.norm = true, .rotate = true}),
      make("qk_norm_rope_pools_packed",
           {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, pooled(window(12, 1), {5, 16}), {0, 80}},
           {.norm = true, .rotate = true}),
      make("rope_learned_pools_packed",
           {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, pooled(window(12, 1), {5, 16}), {0, 80}}, {.learned_pools = true}),
      make("qk_norm_rope_learned_pools_content",
           {offsets_of({140, 20}), 4, 2, 8, 0.3,
            pooled(block_sparse(64, {{.kind = BlockRuleKind::content, .keep = 2}}), {16, 100})},
           {.norm = true, .learned_pools = true}),
      make("rope_gated_pools_packed",
           {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, pooled(window(12, 1), {5, 16}), {0, 80}}, {.gates = true}),
      make("qk_norm_gated_learned_pools_blocks",
           {offsets_of({130, 6}), 4, 2, 16, 0.3, pooled(block_sparse(64, {{.local = 1}}), {16})},
           {.norm = true, .learned_pools = true, .gates = true}),
      make("gated_pools_of_none", {offsets_of({5, 9}), 2, 1, 16, 0.3, pooled(window(3), {16})}, {.gates = true}),
      make("learned_pools_of_none", {offsets_of({5, 16}), 2, 1, 16, 0.3, pooled(window(3), {16, 40})},
           {.rotate = false, .learned_pools = true}),
      make("rope_dropout", {ragged, 4, 2, 16, 0.3, dense(), {}, {.rate = 0.3f, .first_row = 9}},
           {.norm = false, .rotate = true}),
      make("B12_S64_H4_D32", {offsets_of(std::vector<std::int32_t>(12, 64)), 4, 4, 32, 0.17677669, dense()},
           {.norm = false, .rotate = false}),
  };
  all.back().bench = true;
  for (OpCase& c : all) {
    if (c.inputs.size() >= 5) c.tolerance = 2e-5;
    if (c.name.find("content") != std::string::npos) c.half = false;  // rounded queries may select another block
  }
  return all;
}

const AddCases added(cases);

}  // namespace
}  // namespace ring::test
