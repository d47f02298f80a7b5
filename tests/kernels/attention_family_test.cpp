// Properties of every kind of attention and every kernel of it: results as defined, equivalent patterns, no look into
// the future, independent documents, keys in parts, rows without keys.

#include <gtest/gtest.h>

#include "kernels/attention/blocks.h"
#include "tests/kernels/attention_problem.h"

namespace ring::test {
namespace {

const std::vector<Branch> kChain = {{32, 1}, {64, 2}, {128, 4}}, kRagged = {{30, 1}, {100, 3}, {150, 7}};

struct Kind {
  std::string name;
  Pattern pattern;
  std::int32_t align;  // documents that start at multiples of it give the results of single documents; 0: never
};

std::vector<Kind> kinds(bool causal) {
  using K = BlockRuleKind;
  const BlockRule random{.kind = K::random, .threshold = random_threshold(0.4), .seed = 3};
  return {{"dense", dense(causal), 1},
          {"window", window(50, 0, causal), 1},
          {"window_sinks", window(20, 5, causal), 1},
          {"window_wide_sinks", window(3, 70, causal), 1},
          {"dilated", dilated(kChain, false, 1, causal), 128},
          {"dilated_dedup", dilated(kChain, true, 1, causal), 128},
          {"dilated_ragged", dilated(kRagged, false, 2, causal), 0},
          {"scales", scales(causal), 1},
          {"chunks", chunks(causal), 1},
          {"blocks_per_head",
           block_sparse(64, {{.kind = K::local_global, .first = 1}, {.kind = K::strided, .every = 2}}, causal), 64},
          {"blocks_128", block_sparse(128, {{.kind = K::hierarchical}}, causal), 128},
          {"blocks_strided", block_sparse(64, {{.kind = K::strided, .every = 2}}, causal), 64},
          {"blocks_random", block_sparse(64, {random}, causal), 64}};
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> all;
  for (bool causal : {true, false})
    for (Kind& k : kinds(causal)) {
      k.name += causal ? ", causal" : ", full";
      all.push_back(std::move(k));
    }
  return all;
}

// Documents of two packed rows, one of them empty, with rows that belong to no document before and after.
AttentionProblem packed_problem(const Pattern& pattern) {
  return problem_of(pattern, offsets_of({100, 1, 90, 0, 140}, 3), {3, 104}, 5);
}

class AttentionFamily : public testing::TestWithParam<AttentionTarget> {
 protected:
  void SetUp() override {
    if (!backend_available(GetParam().backend)) GTEST_SKIP() << "no device";
  }
  AttentionResults run(const AttentionProblem& p, const AttentionInputs& in) { return test::run(GetParam(), p, in); }
  // Returns the problem with heads that are wide enough for the target.
  static AttentionProblem fit(AttentionProblem p) {
    p.dim = std::max(p.dim, GetParam().min_dim);
    return p;
  }
};
std::string target_name(const testing::TestParamInfo<AttentionTarget>& info) { return name_of(info.param); }

INSTANTIATE_TEST_SUITE_P(Cpu, AttentionFamily, testing::Values(AttentionTarget{}), target_name);
INSTANTIATE_TEST_SUITE_P(Gpu, AttentionFamily,
                         testing::Values(AttentionTarget{Backend::cuda, "own_simt", DType::f32},
                                         AttentionTarget{Backend::cuda, "own_simt", DType::bf16},
                                         AttentionTarget{Backend::cuda, "own_mma", DType::bf16},
                                         AttentionTarget{Backend::cuda, "own_sm90", DType::bf16, false},
                                         AttentionTarget{Backend::cuda, "own_sm90", DType::bf16, false, 72},
                                         AttentionTarget{Backend::cuda, "own_sm90", DType::bf16, false, 136}),
                         target_name);

// Heads differ in all their values and, if the pattern depends on the head, in their keys.
TEST_P(AttentionFamily, EveryKindAtEveryWidth) {
  for (const Kind& k : all_kinds())
    for (std::int64_t dim : {8, 24, 40, 64, 96, 128, 136, 256}) {
      if (dim > 128 && GetParam().backend == Backend::cpu) continue;  // CPU kernels do not depend on the width
      SCOPED_TRACE(str(k.name, ", D ", dim));
      AttentionProblem p = packed_problem(k.pattern);
      p.dim = dim;
      if (dim % 3 == 0) p.heads = 3, p.kv_heads = 3;
      expect_right(GetParam(), p);
    }
}

TEST_P(AttentionFamily, LongRows) {
  for (const Kind& k : all_kinds())
    for (std::int64_t kv_heads : {1, 2}) {
      SCOPED_TRACE(str(k.name, ", ", kv_heads, " KV heads"));
      AttentionProblem p = problem_of(k.pattern, {0, 777});
      p.heads = 2, p.kv_heads = kv_heads, p.dim = 16;
      p = fit(p);
      expect_right(GetParam(), p);
    }
}

// A random selection for several heads, with documents that share blocks and a single one.
TEST_P(AttentionFamily, BlocksThatAreSelected) {
  const BlockRule content{.kind = BlockRuleKind::content, .local = 1, .keep = 100};
  for (std::int32_t block : {64, 128})
    for (std::int64_t dim : {8, 24, 64, 128, 200}) {
      if (dim == 200 && GetParam().backend == Backend::cpu) continue;  // CPU kernels do not depend on the width
      SCOPED_TRACE(str("blocks of ", block, ", D ", dim));
      const Pattern pattern = block_sparse(block, {content});
      AttentionProblem packed = problem_of(pattern, offsets_of({300, 1, 190, 0, 440}, 3), {3, 304}, 5);
      packed.dim = dim;
      if (dim % 3 == 0) packed.heads = 3, packed.kv_heads = 3;
      expect_right(GetParam(), with_selection(packed));
      AttentionProblem one = problem_of(pattern, {0, 1500});
      one.dim = dim, one.heads = 2, one.kv_heads = 1;
      if (dim == 64) one.dropout = {.rate = 0.3f};
      expect_right(GetParam(), with_selection(one));
    }
}

Pattern selected_blocks(std::int32_t block) {
  return block_sparse(block, {{.kind = BlockRuleKind::content, .local = 1, .keep = 100}});
}

// Rows of other devices: selected keys before, after, and wholly or partly beside the queries.
TEST_P(AttentionFamily, SelectedBlocksOfOtherRows) {
  for (std::int32_t block : {64, 128})
    for (std::int64_t dim : {24, 64, 128}) {
      SCOPED_TRACE(str("blocks of ", block, ", D ", dim));
      AttentionProblem p = problem_of(selected_blocks(block), offsets_of({300, 1, 190, 900, 70}, 3), {3, 304});
      p.dim = dim;
      p = with_selection(p);
      std::vector<Span> queries = p.queries, keys = p.keys;
      const auto cut = [](Span& s, std::int32_t at, std::int32_t from, std::int32_t count) {
        s.position += from, s.first = at, s.count = count;
      };
      cut(queries[0], 2, 150, 120), cut(queries[1], 122, 0, 1), cut(queries[2], 125, 0, 0);
      cut(queries[3], 125, 500, 333), cut(queries[4], 460, 0, 70);
      cut(keys[0], 0, 100, 90), cut(keys[1], 95, 0, 0), cut(keys[2], 95, 30, 100);
      cut(keys[3], 200, 17, 610), cut(keys[4], 811, 64, 6);
      expect_right(GetParam(), with_other_rows(p, queries, keys));
    }
}

// A chunk of a sequence that begins in the second half of a tile; the selection has no rows for earlier blocks.
TEST_P(AttentionFamily, SelectedBlocksOfALaterChunk) {
  for (std::int32_t block : {64, 128})
    for (std::int64_t dim : {24, 64, 128}) {
      SCOPED_TRACE(str("blocks of ", block, ", D ", dim));
      AttentionProblem p = problem_of(selected_blocks(block), {0, 1500, 1700});
      p.dim = dim;
      const std::vector<Span> queries = {{0, 924, 576, 0}, {924, 100, 1500, 1500}};
      for (const Span& keys : {Span{0, 576, 0, 0}, Span{0, 924, 576, 0}, Span{0, 1500, 0, 0}})
        expect_right(GetParam(), without_earlier_rows(with_other_rows(with_selection(p), queries,
                                                                      {keys, {keys.count, 100, 1500, 1500}})));
    }
}

TEST_P(AttentionFamily, SelectedBlocksOfKeysInPartsAddUp) {
  for (std::int32_t block : {64, 128}) {
    SCOPED_TRACE(str("blocks of ", block));
    const AttentionProblem p =
        with_selection(fit(problem_of(selected_blocks(block), offsets_of({300, 1, 600, 0, 140}, 3), {3, 304})));
    if (!takes(GetParam(), p)) continue;
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults want = reference(p, in);
    for (int parts : {2, 3, 5})
      for (Order order : {Order::ascending, Order::descending})
        expect_close(run_in_parts(GetParam(), p, in, parts, order, parts == 3), want, tolerance_of(GetParam()));
  }
}

// Keys that are pools of the queries' documents, between rows that belong to no document.
AttentionProblem pool_problem(std::int32_t pool, const std::vector<std::int32_t>& offsets) {
  AttentionProblem p = problem_of({.pool = pool}, offsets, {offsets[0]}, 5);
  p.keys = pool_spans(p.queries, pool);
  p.key_rows = p.keys.back().first + p.keys.back().count + 3;
  for (Span& s : p.keys) s.first += 1;
  return p;
}

TEST_P(AttentionFamily, KeysThatArePools) {
  for (std::int32_t pool : {2, 7, 16, 64, 200})
    for (std::int64_t dim : {8, 24, 64, 128}) {
      SCOPED_TRACE(str("pools of ", pool, ", D ", dim));
      AttentionProblem p = pool_problem(pool, offsets_of({100, 1, 90, 0, 140, 129}, 3));
      p.dim = dim;
      if (dim % 3 == 0) p.heads = 3, p.kv_heads = 3;
      expect_right(GetParam(), p);
      AttentionProblem one = pool_problem(pool, {0, 1500});
      one.dim = dim, one.heads = 2, one.kv_heads = 1;
      expect_right(GetParam(), one);
    }
}

TEST_P(AttentionFamily, PoolsInPartsAddUp) {
  for (std::int32_t pool : {4, 30}) {
    SCOPED_TRACE(str("pools of ", pool));
    AttentionProblem p = fit(pool_problem(pool, offsets_of({300, 1, 220})));
    if (!takes(GetParam(), p)) continue;
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults want = reference(p, in);
    for (int parts : {2, 3, 5})
      for (Order order : {Order::ascending, Order::descending})
        expect_close(run_in_parts(GetParam(), p, in, parts, order), want, tolerance_of(GetParam()));
  }
}

// In bf16 no kind has more than 1.5 times the error of dense attention with the same queries, keys and values.
TEST_P(AttentionFamily, ErrorsAreThoseOfDense) {
  if (GetParam().dtype != DType::bf16) GTEST_SKIP() << "of bf16";
  const auto errors = [&](const Pattern& pattern) {
    AttentionProblem p = problem_of(pattern, {0, 1000});
    p = fit(p);
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults got = run(p, in), want = reference(p, in);
    const auto error = [](const Values& a, const Values& b) { return distance_of(a, b) / norm_of(b); };
    return Values{error(got.out, want.out), error(got.dq, want.dq), error(got.dk, want.dk), error(got.dv, want.dv)};
  };
  const Values of_dense = errors(dense(true));
  for (const Kind& k : kinds(true)) {
    if (!takes(GetParam(), fit(problem_of(k.pattern, {0, 1000})))) continue;
    const Values of_kind = errors(k.pattern);
    for (std::size_t i = 0; i < of_kind.size(); ++i) EXPECT_LE(of_kind[i], 1.5 * of_dense[i]) << k.name << " " << i;
  }
}

// Dropout on the weights of every kind, of all rows and of some rows; keys in parts give the same masks.
TEST_P(AttentionFamily, DropoutAtEveryWidth) {
  for (const Kind& k : all_kinds())
    for (std::int64_t dim : {8, 64, 128, 200}) {
      if (dim == 200 && GetParam().backend == Backend::cpu) continue;  // CPU kernels do not depend on the width
      SCOPED_TRACE(str(k.name, ", D ", dim));
      AttentionProblem p = packed_problem(k.pattern);
      p.dim = dim;
      p.dropout = {.rate = dim == 64 ? 0.1f : 0.5f, .first_row = 123, .first_head = dim == 8 ? 7 : 0};
      if (dim == 64) p.dropout.in_state = true;
      if (dim == 128) p.dropout.step = 3;
      expect_right(GetParam(), p);
    }
}

TEST_P(AttentionFamily, DropoutOfKeysInParts) {
  for (const Kind& k : all_kinds()) {
    SCOPED_TRACE(k.name);
    AttentionProblem p = fit(packed_problem(k.pattern));
    p.dropout = {.rate = 0.3f, .step = 2};
    if (!takes(GetParam(), p)) continue;
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults want = reference(p, in);
    for (int parts : {2, 3})
      expect_close(run_in_parts(GetParam(), p, in, parts, Order::descending), want, tolerance_of(GetParam()));
  }
}

// Keys and queries of different rows, as two devices hold parts of a document. Here one part is wholly in the past, and
// one wholly in the future.
TEST_P(AttentionFamily, KeysOfOtherRows) {
  for (const Kind& k : all_kinds()) {
    SCOPED_TRACE(k.name);
    AttentionProblem p{.pattern = k.pattern, .query_rows = 240, .key_rows = 310};
    p.queries = {{2, 70, 150, 0}, {72, 90, 20, 5}, {170, 30, 0, 0}, {205, 30, 100, 100}};
    p.keys = {{5, 100, 90, 0}, {110, 80, 15, 5}, {200, 30, 30, 0}, {240, 60, 190, 100}};
    expect_right(GetParam(), fit(p));
  }
}

// Bounds on the difference of two calls that compute the same in a different order.
AttentionTolerance tight(const AttentionTarget& t) {
  const double rounding = t.dtype == DType::bf16 ? 4e-3 : 1e-6;
  return {rounding, 1e-6, rounding};
}

void expect_equal(const AttentionTarget& t, AttentionProblem a, const Pattern& other, double lse_shift = 0) {
  AttentionProblem b = a;
  b.pattern = other;
  if (!takes(t, a) || !takes(t, b)) return;
  const AttentionInputs in = random_inputs(a, t.dtype);
  const AttentionResults got = run(t, b, in);
  AttentionResults want = run(t, a, in);
  for (double& x : want.lse) x += lse_shift;
  expect_close(got, want, tight(t));
}

TEST_P(AttentionFamily, PatternsThatKeepEveryPairAreDense) {
  for (bool causal : {true, false}) {
    SCOPED_TRACE(causal ? "causal" : "full");
    const AttentionProblem p = fit(packed_problem(dense(causal)));
    const BlockRule far{.local = 1000}, none{.kind = BlockRuleKind::strided, .every = 1};
    for (const Pattern& same :
         {window(140, 0, causal), window(1 << 30, 0, causal), window(2147483647, 4, causal), window(1, 140, causal),
          dilated({{1000, 1}}, false, 1, causal), dilated({{1000, 1}, {1000, 1}}, true, 0, causal),
          block_sparse(64, {far}, causal), block_sparse(128, {none}, causal)})
      expect_equal(GetParam(), p, same);
  }
}

// Each pair counts twice: the weights are the same, and the log-sum-exp grows by the natural logarithm of 2.
TEST_P(AttentionFamily, PairsOfTwoBranchesCountTwice) {
  for (bool causal : {true, false})
    expect_equal(GetParam(), fit(packed_problem(dense(causal))), dilated({{1000, 1}, {2000, 1}}, false, 0, causal),
                 std::log(2.0));
}

// Returns true if rows `first` to `end` of x [rows, ..] are bit-identical.
bool same_rows(const Values& a, const Values& b, std::int64_t rows, std::int64_t first, std::int64_t end) {
  const std::int64_t width = static_cast<std::int64_t>(a.size()) / rows;
  return std::equal(a.begin() + first * width, a.begin() + end * width, b.begin() + first * width);
}
bool same_lse(const AttentionProblem& p, const Values& a, const Values& b, std::int64_t first, std::int64_t end) {
  for (std::int64_t h = 0; h < p.heads; ++h)
    if (!std::equal(a.begin() + h * p.query_rows + first, a.begin() + h * p.query_rows + end,
                    b.begin() + h * p.query_rows + first))
      return false;
  return true;
}

void change_row(Values& v, std::int64_t rows, std::int64_t row) {
  const std::int64_t width = static_cast<std::int64_t>(v.size()) / rows;
  for (std::int64_t i = row * width; i < (row + 1) * width; ++i) v[static_cast<std::size_t>(i)] = i % 2 ? 3 : -2;
}

// Token t changes. Outputs of other documents and of earlier rows must stay bit-identical.
TEST_P(AttentionFamily, TheFutureDoesNotLeak) {
  for (const Kind& k : kinds(true)) {
    const AttentionProblem p = fit(packed_problem(k.pattern));
    if (!takes(GetParam(), p)) continue;
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults before = run(p, in);
    for (const Span& s : p.queries)
      for (std::int32_t at : {0, 1, 31, 63, 64, 65, 89, 127, 139}) {
        const std::int64_t n = p.query_rows, t = s.first + at, end = s.first + s.count;
        if (at >= s.count) continue;
        SCOPED_TRACE(str(k.name, ", row ", t));
        AttentionInputs changed = in;
        change_row(changed.q, n, t);
        change_row(changed.k, n, t);
        change_row(changed.v, n, t);
        const AttentionResults after = run(p, changed);
        EXPECT_TRUE(same_rows(before.out, after.out, n, 0, t) && same_rows(before.out, after.out, n, end, n));
        EXPECT_FALSE(same_rows(before.out, after.out, n, t, t + 1));
        EXPECT_TRUE(same_lse(p, before.lse, after.lse, 0, t) && same_lse(p, before.lse, after.lse, end, n));
        EXPECT_TRUE(same_rows(before.dq, after.dq, n, 0, t) && same_rows(before.dq, after.dq, n, end, n));
        for (const auto& [a, b] : {std::pair{&before.dk, &after.dk}, {&before.dv, &after.dv}})
          EXPECT_TRUE(same_rows(*a, *b, n, 0, s.first) && same_rows(*a, *b, n, end, n));
      }
  }
}

Values rows_of(const Values& v, std::int64_t rows, const Span& s) {
  const std::int64_t width = static_cast<std::int64_t>(v.size()) / rows;
  return {v.begin() + s.first * width, v.begin() + (s.first + s.count) * width};
}

TEST_P(AttentionFamily, DocumentsAreAsIfAlone) {
  for (const Kind& k : all_kinds()) {
    SCOPED_TRACE(k.name);
    const std::int32_t step = k.align;
    if (step == 0) continue;
    // Documents start at multiples of `step`; rows between them belong to no document.
    const std::int32_t second = (70 + step - 1) / step * step, third = (second + 130 + step - 1) / step * step;
    const AttentionProblem p = fit(problem_of(k.pattern, {0, 70, second, second + 130, third, third + 50}, {0}));
    if (!takes(GetParam(), p)) continue;
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults together = run(p, in);
    for (const Span& s : {p.queries[0], p.queries[2], p.queries[4]}) {
      AttentionProblem one = fit(problem_of(k.pattern, {0, s.count}));
      const std::int64_t n = p.query_rows;
      const AttentionInputs part{rows_of(in.q, n, s), rows_of(in.k, n, s), rows_of(in.v, n, s), rows_of(in.dout, n, s)};
      const AttentionResults alone = run(one, part);
      Values lse;
      for (std::int64_t h = 0; h < p.heads; ++h)
        lse.insert(lse.end(), together.lse.begin() + h * n + s.first, together.lse.begin() + h * n + s.first + s.count);
      expect_close({rows_of(together.out, n, s), lse, rows_of(together.dq, n, s), rows_of(together.dk, n, s),
                    rows_of(together.dv, n, s)},
                   alone, tight(GetParam()));
    }
  }
}

// The error bound is that of one call, regardless of the number of parts.
TEST_P(AttentionFamily, KeysInPartsAddUp) {
  for (const Kind& k : all_kinds()) {
    AttentionProblem p = problem_of(k.pattern, offsets_of({100, 1, 90, 0, 140}), {0, 101});
    p.dim = 64;
    p = fit(p);
    if (!takes(GetParam(), p)) continue;
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults want = reference(p, in);
    for (int parts : {1, 2, 3, 5, 8, 16})
      for (Order order : {Order::ascending, Order::descending}) {
        SCOPED_TRACE(str(k.name, ", ", parts, order == Order::ascending ? " parts" : " parts from the last"));
        expect_close(run_in_parts(GetParam(), p, in, parts, order), want, tolerance_of(GetParam()));
      }
  }
}

// Each dropout rate divides the rows of a part: own_sm90 requires it.
TEST_P(AttentionFamily, CallsThatSeeNoKeyKeepWhatIsCarried) {
  for (const Kind& k : all_kinds()) {
    SCOPED_TRACE(k.name);
    const AttentionProblem p = fit(problem_of(k.pattern, offsets_of({230, 310}), {0}));
    if (!takes(GetParam(), p)) continue;
    const AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults plain = run_in_parts(GetParam(), p, in, 3, Order::descending);
    expect_close(run_in_parts(GetParam(), p, in, 3, Order::descending, true), plain, tight(GetParam()));
  }
}

// Queries before all keys, documents without keys, keys without queries: 0, and no NaN from uninitialized memory.
TEST_P(AttentionFamily, RowsWithoutKeysAreEmpty) {
  for (const Kind& k : kinds(true)) {
    SCOPED_TRACE(k.name);
    AttentionProblem p{.pattern = k.pattern, .query_rows = 150, .key_rows = 160};
    p.queries = {{0, 100, 0, 0}, {100, 40, 10, 10}, {0, 0, 60, 60}};
    p.keys = {{0, 90, 100, 0}, {90, 0, 10, 10}, {90, 60, 60, 60}};
    p = fit(p);
    if (!takes(GetParam(), p)) continue;
    const AttentionResults r = run(p, random_inputs(p, GetParam().dtype));
    for (double x : r.lse) ASSERT_EQ(x, -INFINITY);
    for (const Values* v : {&r.out, &r.dq, &r.dk, &r.dv})
      for (double x : *v) ASSERT_EQ(x, 0);
  }
}

// Rows outside all spans may hold anything. TMA loads of own_sm90 cover whole boxes: there the values must be finite.
TEST_P(AttentionFamily, RowsOfNoSpanDoNotMatter) {
  const double what = GetParam().candidate == "own_sm90" ? 1e4 : NAN;
  for (const Kind& k : all_kinds()) {
    SCOPED_TRACE(k.name);
    const AttentionProblem p = fit(packed_problem(k.pattern));
    if (!takes(GetParam(), p)) continue;
    AttentionInputs in = random_inputs(p, GetParam().dtype);
    const AttentionResults want = run(p, in);
    for_rows_outside(p.queries, p.query_rows, [&](std::int64_t first, std::int64_t count) {
      for (Values* v : {&in.q, &in.k, &in.v, &in.dout}) {
        const std::int64_t width = static_cast<std::int64_t>(v->size()) / p.query_rows;
        std::fill_n(v->begin() + first * width, count * width, what);
      }
    });
    EXPECT_TRUE(run(p, in) == want);
  }
}

// On the CPU also with different numbers of threads: one head and a long row, whose keys are split among threads.
TEST_P(AttentionFamily, RunsHaveTheSameBits) {
  for (const Kind& k : all_kinds())
    for (std::int64_t heads : {1, 4}) {
      SCOPED_TRACE(str(k.name, ", ", heads, " heads"));
      AttentionProblem p = problem_of(k.pattern, {0, 450, 500});
      p.heads = heads, p.kv_heads = (heads + 1) / 2, p.dim = 16;
      p = fit(p);
      AttentionTarget t = GetParam();
      if (!takes(t, p)) continue;
      const AttentionInputs in = random_inputs(p, t.dtype);
      const AttentionResults want = reference(p, in);
      for (int threads : {1, 2, 7}) {
        t.threads = threads;
        const AttentionResults first = test::run(t, p, in);
        EXPECT_TRUE(test::run(t, p, in) == first) << threads << " threads";
        expect_close(first, want, tolerance_of(t));
        if (t.backend != Backend::cpu) break;
      }
    }
}

}  // namespace
}  // namespace ring::test
