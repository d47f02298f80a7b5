#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

OpCase make(const std::string& name, const AttentionShape& a, double score_size = 1) {
  OpCase c;
  c.op = "attention";
  c.name = name;
  const double scale = std::sqrt(score_size);
  c.inputs = {{.name = "q", .shape = {a.tokens(), a.heads, a.dim}, .scale = scale},
              {.name = "k", .shape = {a.tokens(), a.kv_heads, a.dim}, .scale = scale},
              {.name = "v", .shape = {a.tokens(), a.kv_heads, a.dim}}};
  c.oracle = [a](const std::vector<Values>& in) {
    return std::vector<Values>{attention_oracle(a, in[0], in[1], in[2]).out};
  };
  c.run = [a](Run& run, const std::vector<Var>& in) {
    const Sequences sequences{.offsets = a.offsets};
    const AttentionOptions options{static_cast<float>(a.scale), a.causal};
    return std::vector<Var>{attention(run, in[0], in[1], in[2], sequences, options)};
  };
  const double work = attention_pairs(a) * static_cast<double>(a.heads * a.dim);
  const double q = 4.0 * static_cast<double>(a.tokens() * a.heads * a.dim),
               k = q / static_cast<double>(a.heads / a.kv_heads);
  c.flops = 4 * work;
  c.backward_flops = 10 * work;
  c.bytes = 2 * q + 2 * k;
  c.backward_bytes = 4 * q + 4 * k;
  return c;
}

double usual(std::int64_t dim) { return static_cast<float>(1 / std::sqrt(static_cast<double>(dim))); }

OpCase timed(const std::string& name, std::int32_t batch, std::int32_t length, std::int64_t heads,
             std::int64_t kv_heads, std::int64_t dim) {
  const std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), length);
  OpCase c = make(name, {offsets_of(lengths), heads, kv_heads, dim, usual(dim), true});
  c.bench = true;
  return c;
}

std::vector<OpCase> cases() {
  const std::vector<std::int32_t> ragged = offsets_of({1, 63, 64, 65, 130});
  std::vector<OpCase> all = {
      make("tiny", {offsets_of({1, 2, 3}), 1, 1, 8, usual(8), true}),
      make("ragged_D8", {ragged, 2, 2, 8, usual(8), true}),
      make("ragged_D24_gqa", {ragged, 4, 2, 24, usual(24), true}),
      make("ragged_D24_full", {ragged, 2, 1, 24, usual(24), false}),
      make("D32_three_per_kv", {offsets_of({70, 20}), 6, 2, 32, 0.3, true}),
      make("D64_empty_sequence", {offsets_of({40, 0, 33}), 2, 2, 64, usual(64), true}),
      make("D128_mqa_full", {offsets_of({66}), 2, 1, 128, usual(128), false}),
      make("one_long_D16", {offsets_of({400}), 1, 1, 16, usual(16), true}),
  };
  OpCase large = make("large_scores", {ragged, 2, 2, 32, usual(32), true}, 100);  // up to some hundreds
  large.tolerance = 2e-4;  // a score of 300 has a rounding error of 3e-5, and its weight the same relative one
  large.grad_tolerance = 2e-3;
  all.push_back(large);
  all.push_back(timed("B12_S64_H4_D32", 12, 64, 4, 4, 32));
  all.push_back(timed("B1_S2048_H4_D64", 1, 2048, 4, 2, 64));
  all.push_back(timed("B1_S8192_H2_D64", 1, 8192, 2, 1, 64));
  return all;
}

const AddCases added(cases);

}  // namespace
}  // namespace ring::test
