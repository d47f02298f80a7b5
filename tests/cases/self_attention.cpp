#include "kernels/attention/pools/pooled_attention.h"
#include "model/flops.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

struct Options {
  bool norm = false, rotate = true, learned_pools = false, gates = false, sinks = false;
  bool whole_norm = false;  // the QK-norm covers all heads together
  double norm_offset = 0;
  std::int64_t rotary = 0;  // rotated channels of a head; 0: all
};
constexpr Options kPlain{.rotate = false};
constexpr double kAttentionEps = 1e-6f;

// Returns columns [first, first + count) of x [N, width].
Values columns(const Values& x, std::int64_t width, std::int64_t first, std::int64_t count) {
  Values out;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(width))
    out.insert(out.end(), x.begin() + static_cast<std::ptrdiff_t>(row) + first,
               x.begin() + static_cast<std::ptrdiff_t>(row) + first + count);
  return out;
}

void normalise(Values& x, const Values& w, double offset) {
  for (std::size_t at = 0; at < x.size(); at += w.size()) {
    double squares = 0;
    for (std::size_t i = 0; i < w.size(); ++i) squares += x[at + i] * x[at + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(w.size()) + kAttentionEps);
    for (std::size_t i = 0; i < w.size(); ++i) x[at + i] *= rstd * (w[i] + offset);
  }
}

void rotate(Values& x, std::int64_t heads, std::int64_t dim, const Values& positions, const Values& inv_freq) {
  const std::size_t half = inv_freq.size(), width = static_cast<std::size_t>(dim);
  for (std::size_t at = 0; at < x.size(); at += width)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = positions[at / width / static_cast<std::size_t>(heads)] * inv_freq[i];
      const double a = x[at + i], b = x[at + i + half];
      x[at + i] = a * std::cos(angle) - b * std::sin(angle);
      x[at + i + half] = a * std::sin(angle) + b * std::cos(angle);
    }
}

// Inputs: qkv, positions, inv_freq, then weights of the norms, weights of pools, and gates or sinks. Outputs:
// attention, then the keys and values after norm and rotation.
std::vector<Values> self_attention_oracle(AttentionShape a, const Options& o, const std::vector<Values>& in) {
  if (o.learned_pools) a.pooling = in[o.norm ? 5 : 3];
  if (o.gates) a.gates = in.back();
  if (o.sinks) a.sinks = in.back();
  const std::int64_t q_width = a.heads * a.dim, k_width = a.kv_heads * a.dim, width = q_width + 2 * k_width;
  Values q = columns(in[0], width, 0, q_width), k = columns(in[0], width, q_width, k_width);
  const Values v = columns(in[0], width, q_width + k_width, k_width);
  if (o.norm) {
    normalise(q, in[3], o.norm_offset);
    normalise(k, in[4], o.norm_offset);
  }
  if (o.rotate) {
    rotate(q, a.heads, a.dim, in[1], in[2]);
    rotate(k, a.kv_heads, a.dim, in[1], in[2]);
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
  options.attention = {static_cast<float>(a.scale), static_cast<float>(a.soft_cap), a.pattern, a.dropout.rate,
                       a.dropout.site.site};
  options.norm_offset = static_cast<float>(o.norm_offset);
  if (o.rotate) options.inv_freq = in[2].value;
  if (o.norm) {
    options.q_norm = in[3];
    options.k_norm = in[4];
  }
  if (o.learned_pools) options.pooling = in[o.norm ? 5 : 3];
  if (o.gates) options.pool_gates = in.back();
  if (o.sinks) options.sinks = in.back();
  run.seed = a.dropout.site.seed, run.step = a.dropout.site.step, run.first_row = a.dropout.first_row;
  if (a.dropout.step > 0) run.layout.rows = from_host(a.dropout.rows(a.tokens()), run.ctx.stream);
  Tensor keys, values;
  options.keys = &keys;
  options.values = &values;
  const Var y = self_attention(run, in[0], {.offsets = a.offsets, .positions = in[1].value, .rows = a.rows}, options);
  return {y, packed(keys, run.ctx), packed(values, run.ctx)};
}

OpCase make_attention(const std::string& name, const AttentionShape& a, const Options& o = {}) {
  OpCase c;
  c.op = "self_attention";
  c.name = name;
  Values positions, inv_freq;
  for (std::size_t b = 0; b + 1 < a.offsets.size(); ++b)
    for (std::int32_t t = a.offsets[b]; t < a.offsets[b + 1]; ++t) positions.push_back(t - a.offsets[b] + 3);
  const std::int64_t rotary = o.rotary ? o.rotary : a.dim;
  for (std::int64_t i = 0; i < rotary / 2; ++i)
    inv_freq.push_back(std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary)));
  const std::int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
  c.inputs = {{.name = "qkv", .shape = {a.tokens(), width}},
              {.name = "positions", .shape = {a.tokens()}, .values = positions, .dtype = DType::i32},
              {.name = "inv_freq", .shape = {rotary / 2}, .values = inv_freq, .differentiable = false}};
  if (o.norm) {
    c.inputs.push_back({.name = "q_norm", .shape = {o.whole_norm ? a.heads * a.dim : a.dim}});
    c.inputs.push_back({.name = "k_norm", .shape = {o.whole_norm ? a.kv_heads * a.dim : a.dim}});
  }
  if (o.learned_pools)
    c.inputs.push_back({.name = "pooling", .shape = {pool_weights_numel(a.pattern, a.kv_heads, a.dim)}});
  if (o.gates) c.inputs.push_back({.name = "gates", .shape = {a.tokens(), a.heads}, .scale = 2});
  if (o.sinks) c.inputs.push_back({.name = "sinks", .shape = {a.heads}, .scale = 3});
  c.oracle = [a, o](const std::vector<Values>& in) { return self_attention_oracle(a, o, in); };
  c.run = [a, o](Run& run, const std::vector<Var>& in) { return run_op(run, in, a, o); };
  c.flops = 4 * attention_pairs(a) * static_cast<double>(a.heads * a.dim);
  c.backward_flops = 2.5 * c.flops;
  c.bytes = 4.0 * static_cast<double>(a.tokens() * (width + a.heads * a.dim));
  c.backward_bytes = 8.0 * static_cast<double>(a.tokens() * (width + a.heads * a.dim));
  return c;
}

double usual(std::int64_t dim) { return static_cast<float>(1 / std::sqrt(static_cast<double>(dim))); }

OpCase plain(const std::string& name, const AttentionShape& a) { return make_attention(name, a, kPlain); }

OpCase timed(const std::string& name, std::int32_t batch, std::int32_t length, std::int64_t heads,
             std::int64_t kv_heads, std::int64_t dim, const Pattern& pattern = dense()) {
  const std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), length);
  OpCase c = plain(name, {offsets_of(lengths), heads, kv_heads, dim, usual(dim), pattern});
  c.bench = true;
  return c;
}

// Every kind over several tiles, with documents packed in rows, heads that share keys, and heads of many widths.
std::vector<OpCase> patterns() {
  using K = BlockRuleKind;
  const std::vector<std::int32_t> packed = offsets_of({100, 30, 130, 3}), rows = {0, 130}, one = offsets_of({270});
  const std::vector<std::int32_t> aligned = offsets_of({128, 64, 150}), aligned_rows = {0, 192};
  const std::vector<std::uint32_t> drawn = {0b00001, 0b00010, 0b00101, 0b01000, 0b10011};
  const std::vector<BlockRule> rules = {{.kind = K::local_global, .local = 1, .first = 1},
                                        {.kind = K::strided, .every = 2}};
  const BlockRule content{.kind = K::content, .keep = 2}, first{.kind = K::content, .first = 1, .keep = 3};
  return {
      plain("window_D64", {packed, 2, 1, 64, usual(64), window(50), rows}),
      plain("window_2_D8", {offsets_of({70}), 2, 2, 8, usual(8), window(2)}),
      plain("window_sinks_D24", {packed, 4, 2, 24, usual(24), window(20, 4), rows}),
      plain("window_full_D40", {packed, 2, 1, 40, usual(40), window(33, 0, false), rows}),
      plain("window_sinks_full_D128", {one, 2, 1, 128, usual(128), window(70, 3, false)}),
      plain("dilated_D64", {one, 4, 2, 64, usual(64), dilated({{64, 1}, {128, 2}, {256, 4}}, false, 1)}),
      plain("dilated_packed_D32", {packed, 6, 3, 32, usual(32), dilated({{32, 1}, {64, 2}}), rows}),
      plain("dilated_ragged_D8",
            {offsets_of({200, 61}), 3, 3, 8, 0.5, dilated({{30, 1}, {100, 3}, {150, 7}}, false, 2)}),
      plain("dilated_dedup_D24", {one, 2, 2, 24, usual(24), dilated({{32, 1}, {64, 2}, {256, 8}}, true, 3)}),
      plain("dilated_full_D128", {packed, 2, 1, 128, usual(128), dilated({{48, 1}, {96, 2}}, false, 0, false), rows}),
      plain("dilated_full_dedup_D16", {one, 2, 2, 16, usual(16), dilated({{64, 1}, {256, 2}}, true, 0, false)}),
      plain("blocks_per_head_D64", {offsets_of({400}), 4, 2, 64, usual(64), block_sparse(64, rules)}),
      plain("blocks_packed_D32", {packed, 2, 2, 32, usual(32), block_sparse(64, {{.local = 1}}), rows}),
      plain("blocks_128_levels_D24",
            {offsets_of({600}), 1, 1, 24, usual(24), block_sparse(128, {{.kind = K::hierarchical}})}),
      plain("blocks_full_D128", {aligned, 2, 1, 128, usual(128), block_sparse(64, {rules[1]}, false), aligned_rows}),
      plain("blocks_random_D16", {offsets_of({390}), 4, 4, 16, usual(16),
                                  block_sparse(64, {{.kind = K::random, .threshold = 1u << 31}}, false)}),
      plain("blocks_drawn_D40", {offsets_of({315}), 2, 1, 40, usual(40),
                                 block_sparse(64, {{.kind = K::drawn, .rows = 5, .words = 1}}, true, drawn)}),
      plain("content_D16", {offsets_of({400}), 4, 2, 16, usual(16), block_sparse(64, {content})}),
      plain("content_packed_D24",
            {offsets_of({350, 30, 290, 3}), 2, 2, 24, usual(24), block_sparse(64, {first, rules[0]}), {0, 380}}),
      plain("content_mass_D16", {offsets_of({700, 300}), 4, 2, 16, 2.0,
                                 block_sparse(64, {{.kind = K::content, .first = 1, .keep = 7, .mass = 0.55f}})}),
      plain("content_128_D64", {offsets_of({700}), 2, 1, 64, usual(64), block_sparse(128, {content})}),
  };
}

// Pools with every pattern that may have them. Documents are shorter than a pool, exactly as long, or end with a pool.
std::vector<OpCase> with_pools() {
  const std::vector<std::int32_t> packed = offsets_of({100, 16, 129, 3, 32}), rows = {0, 116};
  const BlockRule content{.kind = BlockRuleKind::content, .keep = 2};
  return {
      plain("pools_tiny", {offsets_of({1, 2, 3, 5}), 1, 1, 8, usual(8), pooled(window(1), {2})}),
      plain("pools_window_D24", {packed, 4, 2, 24, usual(24), pooled(window(10, 1), {16}), rows}),
      plain("pools_two_sizes_D64", {offsets_of({330}), 2, 1, 64, usual(64), pooled(window(20), {7, 64})}),
      plain("pools_of_none_D8", {packed, 2, 2, 8, usual(8), pooled(window(30), {200, 1000}), rows}),
      plain("pools_dense_D40", {offsets_of({150}), 2, 2, 40, usual(40), pooled(dense(), {32})}),
      plain("pools_blocks_D16", {offsets_of({300, 70}), 2, 1, 16, usual(16),
                                 pooled(block_sparse(64, {{.local = 1, .first = 1}}), {16, 64})}),
      plain("pools_content_D16", {offsets_of({400}), 4, 2, 16, usual(16), pooled(block_sparse(64, {content}), {16})}),
  };
}

// Dropout with every pattern: pairs that count several times, documents in the middle of rows, other row numbers.
std::vector<OpCase> dropped() {
  const std::vector<std::int32_t> packed = offsets_of({100, 30, 130, 3}), rows = {0, 130}, one = offsets_of({270});
  const auto with = [](const std::string& name, AttentionShape a, const OracleDropout& d) {
    a.dropout = d;
    return plain("dropout_" + name, a);
  };
  const BlockRule strided{.kind = BlockRuleKind::strided, .every = 2};
  return {
      with("tiny", {offsets_of({1, 2, 3}), 1, 1, 8, usual(8), dense()}, {.rate = 0.5f}),
      with("dense_D64", {offsets_of({90, 1, 64}), 2, 2, 64, usual(64), dense()}, {.rate = 0.2f}),
      with("dense_packed_D24", {packed, 4, 2, 24, usual(24), dense(), rows}, {.rate = 0.3f, .first_row = 1000}),
      with("full_D128", {offsets_of({70}), 1, 1, 128, usual(128), dense(false)}, {.rate = 0.9f, .step = 3}),
      with("rows_D32", {offsets_of({130}), 6, 2, 32, 0.3, dense()}, {.rate = 0.1f, .first_row = 1 << 20, .step = 2}),
      with("window_sinks_D40", {packed, 4, 2, 40, usual(40), window(20, 4), rows}, {.rate = 0.4f}),
      with("dilated_D64", {one, 4, 2, 64, usual(64), dilated({{64, 1}, {128, 2}, {256, 4}}, false, 1)}, {.rate = 0.3f}),
      with("dilated_dedup_D16", {packed, 2, 2, 16, usual(16), dilated({{32, 1}, {64, 2}}, true, 3), rows},
           {.rate = 0.5f}),
      with("blocks_D64", {packed, 2, 1, 64, usual(64), block_sparse(64, {strided}), rows}, {.rate = 0.25f}),
      with("content_D32",
           {offsets_of({330}), 2, 1, 32, usual(32), block_sparse(64, {{.kind = BlockRuleKind::content, .keep = 2}})},
           {.rate = 0.2f}),
      with("blocks_full_D24", {offsets_of({210}), 1, 1, 24, usual(24), block_sparse(64, {strided}, false)},
           {.rate = 0.1f}),
  };
}

std::vector<OpCase> plain_cases() {
  const std::vector<std::int32_t> ragged = offsets_of({1, 63, 64, 65, 130});
  std::vector<OpCase> all = {
      plain("tiny", {offsets_of({1, 2, 3}), 1, 1, 8, usual(8), dense()}),
      plain("ragged_D8", {ragged, 2, 2, 8, usual(8), dense()}),
      plain("ragged_D24_gqa", {ragged, 4, 2, 24, usual(24), dense()}),
      plain("ragged_D24_full", {ragged, 2, 1, 24, usual(24), dense(false)}),
      plain("D32_three_per_kv", {offsets_of({70, 20}), 6, 2, 32, 0.3, dense()}),
      plain("D64_empty_sequence", {offsets_of({40, 0, 33}), 2, 2, 64, usual(64), dense()}),
      plain("D128_mqa_full", {offsets_of({66}), 2, 1, 128, usual(128), dense(false)}),
      plain("one_long_D16", {offsets_of({400}), 1, 1, 16, usual(16), dense()}),
  };
  for (OpCase& c : patterns()) all.push_back(std::move(c));
  for (OpCase& c : dropped()) all.push_back(std::move(c));
  for (OpCase& c : with_pools()) all.push_back(std::move(c));
  OpCase large = plain("large_scores", {ragged, 2, 2, 32, usual(32), dense()});
  large.inputs[0].values = random_values(large.name, large.inputs[0].shape.numel());
  for (std::size_t i = 0; i < large.inputs[0].values.size(); ++i)  // queries and keys: scores reach some hundreds
    if (i % 192 < 128) large.inputs[0].values[i] *= 10;
  large.tolerance = 2e-4;  // a score of 300 has a rounding error of 3e-5, and its weight the same relative error
  large.grad_tolerance = 2e-3;
  all.push_back(large);
  all.push_back(timed("B12_S64_H4_D32", 12, 64, 4, 4, 32));
  all.push_back(timed("B1_S2048_H4_D64", 1, 2048, 4, 2, 64));
  all.push_back(timed("B1_S8192_H2_D64", 1, 8192, 2, 1, 64));
  all.push_back(timed("window64_B1_S2048_H4_D64", 1, 2048, 4, 2, 64, window(64)));
  all.push_back(timed("dilated_B1_S8192_H2_D64", 1, 8192, 2, 1, 64, dilated({{512, 1}, {2048, 4}, {8192, 16}})));
  const BlockRule levels{.kind = BlockRuleKind::hierarchical, .local = 2};
  all.push_back(timed("blocks_B1_S8192_H2_D64", 1, 8192, 2, 1, 64, block_sparse(64, {levels})));
  all.push_back(timed("pools_B1_S8192_H2_D64", 1, 8192, 2, 1, 64, pooled(window(256), {16, 128})));
  return all;
}

OpCase capped(const std::string& name, AttentionShape a, double cap, const Options& o = kPlain) {
  a.soft_cap = cap;
  return make_attention("soft_cap_" + name, a, o);
}

OpCase with_sinks(const std::string& name, const AttentionShape& a, Options o = kPlain) {
  o.sinks = true;
  return make_attention("sinks_" + name, a, o);
}

// Learned sinks with every kind of pattern.
std::vector<OpCase> sinks() {
  const std::vector<std::int32_t> packed = offsets_of({40, 13, 30, 3}), rows = {0, 53};
  const BlockRule content{.kind = BlockRuleKind::content, .keep = 2};
  AttentionShape capped{packed, 4, 2, 24, 1.0, dense(), rows, {.rate = 0.3f}};
  capped.soft_cap = 3;
  return {
      with_sinks("tiny", {offsets_of({1, 2, 3}), 1, 1, 8, 2.0, dense()}),
      with_sinks("rope_norm", {packed, 4, 2, 24, 0.3, dense(), rows}, {.norm = true}),
      with_sinks("full_D128", {offsets_of({20}), 2, 1, 128, usual(128), dense(false)}),
      with_sinks("window_D64", {packed, 4, 1, 64, usual(64), window(9, 2), rows}),
      with_sinks("dilated_without_keys", {packed, 6, 3, 32, usual(32), dilated({{16, 1}, {32, 2}}, false, 1), rows}),
      with_sinks("soft_cap_dropout", capped),
      with_sinks("content_D16", {offsets_of({200}), 4, 2, 16, usual(16), block_sparse(64, {content})}),
      with_sinks("pools_D16", {offsets_of({50, 6}), 4, 2, 16, usual(16), pooled(window(12), {5, 16})}),
  };
}

// Settings of published families that Llama does not have.
std::vector<OpCase> of_families() {
  const std::vector<std::int32_t> ragged = offsets_of({5, 1, 70}), packed = offsets_of({100, 30, 130, 3}),
                                  rows = {0, 130};
  return {
      make_attention("whole_norm_rope_gqa", {ragged, 6, 2, 16, 0.3, dense()}, {.norm = true, .whole_norm = true}),
      make_attention("whole_norm_window", {ragged, 4, 4, 8, 0.3, window(20)},
                     {.norm = true, .rotate = false, .whole_norm = true, .norm_offset = 1}),
      make_attention("zero_centered_norm_rope", {ragged, 4, 2, 16, 0.3, dense()}, {.norm = true, .norm_offset = 1}),
      make_attention("partial_rope", {ragged, 4, 2, 24, 0.3, dense()}, {.rotary = 6}),
      make_attention("partial_rope_norm", {ragged, 2, 1, 32, 0.3, dense()}, {.norm = true, .rotary = 16}),
      capped("tiny", {offsets_of({1, 2, 3}), 1, 1, 8, 2.0, dense()}, 1),
      capped("dense_D24", {packed, 4, 2, 24, 1.0, dense(), rows}, 3),
      capped("window_D64", {packed, 2, 1, 64, 0.5, window(50), rows}, 2),
      capped("window_sinks_full_D40", {packed, 2, 1, 40, 1.0, window(33, 2, false), rows}, 5),
      capped("dropout_rope_norm", {packed, 4, 2, 16, 1.0, dense(), rows, {.rate = 0.3f}}, 2, {.norm = true}),
      capped("D128", {offsets_of({130}), 2, 1, 128, 0.3, dense()}, 4),
  };
}

std::vector<OpCase> attention_cases() {
  const std::vector<std::int32_t> ragged = offsets_of({5, 1, 70});
  std::vector<OpCase> all = {
      make_attention("plain", {ragged, 2, 2, 8, 0.4, dense()}, kPlain),
      make_attention("rope", {ragged, 2, 2, 16, 0.3, dense()}),
      make_attention("rope_gqa_full", {ragged, 4, 2, 8, 0.3, dense(false)}),
      make_attention("qk_norm", {ragged, 2, 1, 16, 0.3, dense()}, {.norm = true, .rotate = false}),
      make_attention("qk_norm_rope_gqa", {ragged, 6, 2, 24, 0.2, dense()}, {.norm = true}),
      make_attention("rope_window_packed", {ragged, 4, 2, 16, 0.3, window(20, 2), {0, 6}}),
      make_attention("qk_norm_rope_dilated_packed",
                     {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, dilated({{20, 1}, {40, 2}}, false, 1), {0, 80}},
                     {.norm = true}),
      make_attention("rope_blocks", {offsets_of({200}), 2, 2, 8, 0.3, block_sparse(64, {{.local = 1, .first = 1}})}),
      make_attention(
          "qk_norm_rope_content_gqa",
          {offsets_of({330, 40}), 4, 2, 8, 0.3, block_sparse(64, {{.kind = BlockRuleKind::content, .keep = 3}})},
          {.norm = true}),
      make_attention("qk_norm_rope_pools_packed",
                     {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, pooled(window(12, 1), {5, 16}), {0, 80}},
                     {.norm = true}),
      make_attention("rope_learned_pools_packed",
                     {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, pooled(window(12, 1), {5, 16}), {0, 80}},
                     {.learned_pools = true}),
      make_attention("qk_norm_rope_learned_pools_content",
                     {offsets_of({140, 20}), 4, 2, 8, 0.3,
                      pooled(block_sparse(64, {{.kind = BlockRuleKind::content, .keep = 2}}), {16, 100})},
                     {.norm = true, .learned_pools = true}),
      make_attention("rope_gated_pools_packed",
                     {offsets_of({50, 30, 70}), 4, 2, 24, 0.3, pooled(window(12, 1), {5, 16}), {0, 80}},
                     {.gates = true}),
      make_attention("qk_norm_gated_learned_pools_blocks",
                     {offsets_of({130, 6}), 4, 2, 16, 0.3, pooled(block_sparse(64, {{.local = 1}}), {16})},
                     {.norm = true, .learned_pools = true, .gates = true}),
      make_attention("gated_pools_of_none", {offsets_of({5, 9}), 2, 1, 16, 0.3, pooled(window(3), {16})},
                     {.gates = true}),
      make_attention("learned_pools_of_none", {offsets_of({5, 16}), 2, 1, 16, 0.3, pooled(window(3), {16, 40})},
                     {.rotate = false, .learned_pools = true}),
      make_attention("rope_dropout", {ragged, 4, 2, 16, 0.3, dense(), {}, {.rate = 0.3f, .first_row = 9}}),
  };
  for (OpCase& c : all) {
    if (c.inputs.size() >= 5) c.tolerance = 2e-5;
    if (c.name.find("content") != std::string::npos) c.half = false;  // rounded queries may select different blocks
  }
  std::vector<OpCase> others = of_families();
  for (OpCase& c : sinks()) others.push_back(std::move(c));
  for (OpCase& c : others) {
    c.tolerance = 2e-5;
    all.push_back(std::move(c));
  }
  for (OpCase& c : plain_cases()) all.push_back(std::move(c));
  return all;
}

const AddCases added_attentions(attention_cases);

}  // namespace
}  // namespace ring::test
