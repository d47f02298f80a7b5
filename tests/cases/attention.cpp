#include "model/flops.h"
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
    const Sequences sequences{.offsets = a.offsets, .rows = a.rows};
    const AttentionOptions options{static_cast<float>(a.scale), a.pattern, a.dropout.rate, a.dropout.site.site};
    Run mine = run;
    mine.seed = a.dropout.site.seed, mine.step = a.dropout.site.step, mine.first_row = a.dropout.first_row;
    if (a.dropout.step > 0) mine.rows = from_host(a.dropout.rows(a.tokens()), run.ctx.stream);
    return std::vector<Var>{attention(mine, in[0], in[1], in[2], sequences, options)};
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
             std::int64_t kv_heads, std::int64_t dim, const Pattern& pattern = dense()) {
  const std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), length);
  OpCase c = make(name, {offsets_of(lengths), heads, kv_heads, dim, usual(dim), pattern});
  c.bench = true;
  return c;
}

// Every kind over several tiles, documents packed in rows, heads that share keys, heads of many widths.
std::vector<OpCase> patterns() {
  using K = BlockRuleKind;
  const std::vector<std::int32_t> packed = offsets_of({100, 30, 130, 3}), rows = {0, 130}, one = offsets_of({270});
  const std::vector<std::int32_t> aligned = offsets_of({128, 64, 150}), aligned_rows = {0, 192};
  const std::vector<std::uint32_t> drawn = {0b00001, 0b00010, 0b00101, 0b01000, 0b10011};
  const std::vector<BlockRule> rules = {{.kind = K::local_global, .local = 1, .first = 1},
                                        {.kind = K::strided, .every = 2}};
  const BlockRule content{.kind = K::content, .keep = 2}, first{.kind = K::content, .first = 1, .keep = 3};
  return {
      make("window_D64", {packed, 2, 1, 64, usual(64), window(50), rows}),
      make("window_2_D8", {offsets_of({70}), 2, 2, 8, usual(8), window(2)}),
      make("window_sinks_D24", {packed, 4, 2, 24, usual(24), window(20, 4), rows}),
      make("window_full_D40", {packed, 2, 1, 40, usual(40), window(33, 0, false), rows}),
      make("window_sinks_full_D128", {one, 2, 1, 128, usual(128), window(70, 3, false)}),
      make("dilated_D64", {one, 4, 2, 64, usual(64), dilated({{64, 1}, {128, 2}, {256, 4}}, false, 1)}),
      make("dilated_packed_D32", {packed, 6, 3, 32, usual(32), dilated({{32, 1}, {64, 2}}), rows}),
      make("dilated_ragged_D8",
           {offsets_of({200, 61}), 3, 3, 8, 0.5, dilated({{30, 1}, {100, 3}, {150, 7}}, false, 2)}),
      make("dilated_dedup_D24", {one, 2, 2, 24, usual(24), dilated({{32, 1}, {64, 2}, {256, 8}}, true, 3)}),
      make("dilated_full_D128", {packed, 2, 1, 128, usual(128), dilated({{48, 1}, {96, 2}}, false, 0, false), rows}),
      make("dilated_full_dedup_D16", {one, 2, 2, 16, usual(16), dilated({{64, 1}, {256, 2}}, true, 0, false)}),
      make("blocks_per_head_D64", {offsets_of({400}), 4, 2, 64, usual(64), block_sparse(64, rules)}),
      make("blocks_packed_D32", {packed, 2, 2, 32, usual(32), block_sparse(64, {{.local = 1}}), rows}),
      make("blocks_128_levels_D24",
           {offsets_of({600}), 1, 1, 24, usual(24), block_sparse(128, {{.kind = K::hierarchical}})}),
      make("blocks_full_D128", {aligned, 2, 1, 128, usual(128), block_sparse(64, {rules[1]}, false), aligned_rows}),
      make("blocks_random_D16", {offsets_of({390}), 4, 4, 16, usual(16),
                                 block_sparse(64, {{.kind = K::random, .threshold = 1u << 31}}, false)}),
      make("blocks_drawn_D40", {offsets_of({315}), 2, 1, 40, usual(40),
                                block_sparse(64, {{.kind = K::drawn, .rows = 5, .words = 1}}, true, drawn)}),
      make("content_D16", {offsets_of({400}), 4, 2, 16, usual(16), block_sparse(64, {content})}),
      make("content_packed_D24",
           {offsets_of({350, 30, 290, 3}), 2, 2, 24, usual(24), block_sparse(64, {first, rules[0]}), {0, 380}}),
      make("content_mass_D16", {offsets_of({700, 300}), 4, 2, 16, 2.0,
                                block_sparse(64, {{.kind = K::content, .first = 1, .keep = 7, .mass = 0.55f}})}),
      make("content_128_D64", {offsets_of({700}), 2, 1, 64, usual(64), block_sparse(128, {content})}),
  };
}

// Pools beside every pattern that may have them: documents that are shorter than a pool, or as long, or end with one.
std::vector<OpCase> with_pools() {
  const std::vector<std::int32_t> packed = offsets_of({100, 16, 129, 3, 32}), rows = {0, 116};
  const BlockRule content{.kind = BlockRuleKind::content, .keep = 2};
  return {
      make("pools_tiny", {offsets_of({1, 2, 3, 5}), 1, 1, 8, usual(8), pooled(window(1), {2})}),
      make("pools_window_D24", {packed, 4, 2, 24, usual(24), pooled(window(10, 1), {16}), rows}),
      make("pools_two_sizes_D64", {offsets_of({330}), 2, 1, 64, usual(64), pooled(window(20), {7, 64})}),
      make("pools_of_none_D8", {packed, 2, 2, 8, usual(8), pooled(window(30), {200, 1000}), rows}),
      make("pools_dense_D40", {offsets_of({150}), 2, 2, 40, usual(40), pooled(dense(), {32})}),
      make("pools_blocks_D16", {offsets_of({300, 70}), 2, 1, 16, usual(16),
                                pooled(block_sparse(64, {{.local = 1, .first = 1}}), {16, 64})}),
      make("pools_content_D16", {offsets_of({400}), 4, 2, 16, usual(16), pooled(block_sparse(64, {content}), {16})}),
  };
}

// Dropout with every pattern: pairs that count several times, documents in the middle of rows, rows of other numbers.
std::vector<OpCase> dropped() {
  const std::vector<std::int32_t> packed = offsets_of({100, 30, 130, 3}), rows = {0, 130}, one = offsets_of({270});
  const auto with = [](const std::string& name, AttentionShape a, const OracleDropout& d) {
    a.dropout = d;
    return make("dropout_" + name, a);
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

std::vector<OpCase> cases() {
  const std::vector<std::int32_t> ragged = offsets_of({1, 63, 64, 65, 130});
  std::vector<OpCase> all = {
      make("tiny", {offsets_of({1, 2, 3}), 1, 1, 8, usual(8), dense()}),
      make("ragged_D8", {ragged, 2, 2, 8, usual(8), dense()}),
      make("ragged_D24_gqa", {ragged, 4, 2, 24, usual(24), dense()}),
      make("ragged_D24_full", {ragged, 2, 1, 24, usual(24), dense(false)}),
      make("D32_three_per_kv", {offsets_of({70, 20}), 6, 2, 32, 0.3, dense()}),
      make("D64_empty_sequence", {offsets_of({40, 0, 33}), 2, 2, 64, usual(64), dense()}),
      make("D128_mqa_full", {offsets_of({66}), 2, 1, 128, usual(128), dense(false)}),
      make("one_long_D16", {offsets_of({400}), 1, 1, 16, usual(16), dense()}),
  };
  for (OpCase& c : patterns()) all.push_back(std::move(c));
  for (OpCase& c : dropped()) all.push_back(std::move(c));
  for (OpCase& c : with_pools()) all.push_back(std::move(c));
  OpCase large = make("large_scores", {ragged, 2, 2, 32, usual(32), dense()}, 100);  // up to some hundreds
  large.tolerance = 2e-4;  // a score of 300 has a rounding error of 3e-5, and its weight the same relative one
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

const AddCases added(cases);

}  // namespace
}  // namespace ring::test
