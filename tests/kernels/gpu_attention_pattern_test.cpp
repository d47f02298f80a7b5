// Our own CUDA attention, candidate by candidate, beyond attention_family_test.cpp: patterns at every width with a
// kernel of its own and over rows of many tiles, split lists, results in f32, and results that are carried from one
// part of queries and keys to the next.

#include "kernels/attention/blocks.h"
#include "tests/kernels/gpu_attention_problem.h"

namespace ring::test {
namespace {

// Documents on both sides of block edges: each one a row, or several in a packed row.
GpuProblem problem(const Pattern& pattern, std::int64_t dim, bool packed) {
  GpuProblem p{offsets_of({1, 130, 290, 91}), 4, 2, dim, pattern};
  if (packed) p.rows = {0, 131};
  return p;
}

BlockRule random_rule(double density, std::uint64_t seed, std::int32_t local = 1) {
  return {.kind = BlockRuleKind::random, .local = local, .threshold = random_threshold(density), .seed = seed};
}

std::vector<Pattern> patterns(bool causal) {
  return {dense(causal),
          window(90, 0, causal),
          window(33, 70, causal),
          dilated({{64, 1}, {256, 4}}, false, 1, causal),
          dilated({{50, 1}, {130, 3}, {1000, 7}}, false, 2, causal),
          dilated({{64, 1}, {128, 2}, {512, 4}}, true, 0, causal),
          scales(causal),
          chunks(causal),
          block_sparse(64, {random_rule(0.4, 7), {.local = 1, .every = 3}}, causal),
          block_sparse(128, {{.kind = BlockRuleKind::strided, .local = 1, .every = 2}}, causal)};
}

TEST_F(GpuAttention, PatternsAtEveryWidth) {
  for (bool causal : {true, false})
    for (const Pattern& pattern : patterns(causal))
      for (bool packed : {false, true})
        for (std::int64_t dim : {64, 128, 256}) {
          GpuProblem p = problem(pattern, dim, packed);
          expect_right(own_candidates(p), p);
          p.dtype = DType::f32;
          expect_right("own_simt", p);
        }
}

TEST_F(GpuAttention, PatternsOfRowsThatAreNotAligned) {
  for (const Pattern& pattern : patterns(true)) {
    GpuProblem p = problem(pattern, 40, true);
    p.shift = 3;
    expect_right("own_simt", p);
  }
}

// Whole tiles are between the sinks and the window.
TEST_F(GpuAttention, WindowsOfLongRows) {
  for (bool causal : {true, false})
    for (std::int32_t sinks : {0, 70})
      for (std::int32_t size : {1, 200, 1400}) {
        const GpuProblem p{offsets_of({1500}), 2, 1, 64, window(size, sinks, causal)};
        expect_right(own_candidates(p), p);
      }
}

// Rows fill the blocks of 192 queries that own_sm90 uses for narrow heads: rounded, in f32, merged.
TEST_F(GpuAttention, RowsOfTheLargestBlocks) {
  for (bool causal : {true, false})
    for (const Pattern& pattern :
         {dense(causal), window(700, 70, causal), dilated({{1200, 1}, {2600, 2}}, false, 1, causal)})
      for (bool wide : {false, true}) {
        GpuProblem p{offsets_of({1100, 1300, 96}), 2, 1, 64, pattern};
        p.wide = wide;
        expect_right(on_tensor_cores(p), p);
      }
}

// More residues than KV heads, and fewer; head segments longer than a block.
TEST_F(GpuAttention, DilatedHeads) {
  for (std::int64_t kv_heads : {1, 5})
    for (bool dedup : {false, true}) {
      GpuProblem p{offsets_of({600, 424}), 2 * kv_heads, kv_heads, 64, dilated({{256, 1}, {1024, 4}}, dedup, 3)};
      p.rows = {0};
      expect_right(own_candidates(p), p);
    }
}

// One rule per KV head, over rows of several tiles.
TEST_F(GpuAttention, BlockPatternsOfHeads) {
  const std::vector<BlockRule> rules = {{.kind = BlockRuleKind::hierarchical, .local = 2},
                                        {.kind = BlockRuleKind::local_global, .local = 1, .every = 5},
                                        random_rule(0.1, 3, 2)};
  for (std::int32_t block : {64, 128})
    for (bool causal : {true, false}) {
      GpuProblem p{offsets_of({700, 324, 900}), 6, 3, 64, block_sparse(block, rules, causal)};
      p.rows = {0, 1024};
      expect_right(own_candidates(p), p);
    }
}

// All queries see the first key block: its list of queries is much longer than the others, and is split into parts.
TEST_F(GpuAttention, LongListsOfQueries) {
  const Pattern pattern = block_sparse(64, {{.kind = BlockRuleKind::local_global, .local = 1, .first = 1}});
  for (std::int64_t dim : {64, 128, 256})
    for (bool packed : {false, true})
      for (bool wide : {false, true}) {
        GpuProblem p{offsets_of({200, 2500}), 4, 2, dim, pattern};
        if (packed) p.rows = {0};
        p.wide = wide;
        expect_right(own_candidates(p), p);
      }
  const GpuProblem p{offsets_of({2500}), 4, 2, 64, pattern};
  const AttentionInputs in = gpu_inputs(p);
  for (const std::string& name : own_candidates(p)) EXPECT_TRUE(run_gpu(name, p, in) == run_gpu(name, p, in)) << name;
}

// Samples of branches fill many tiles, also for wide heads: blocks of keys add to the gradients of queries in turn.
TEST_F(GpuAttention, DilatedRowsOfManyTiles) {
  for (bool causal : {true, false})
    for (std::int64_t dim : {64, 128}) {
      const GpuProblem p{offsets_of({2100, 300}), 2, 1, dim, dilated({{1100, 1}, {2100, 2}}, false, 1, causal)};
      const AttentionInputs in = gpu_inputs(p);
      const AttentionResults want = reference(p.problem(), in);
      for (const std::string& name : on_tensor_cores(p)) {
        SCOPED_TRACE(str(name, ": ", text(p)));
        const AttentionResults first = run_gpu(name, p, in);
        expect_close(p, first, want);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_gpu(name, p, in) == first);
      }
    }
}

// Without the deterministic setting, gradients of queries may be summed in any order.
void expect_right_in_any_order(GpuProblem p) {
  const AttentionInputs in = gpu_inputs(p);
  const AttentionResults want = reference(p.problem(), in);
  p.deterministic = false;
  for (const std::string& name : on_tensor_cores(p))
    for (bool wide : {false, true}) {
      p.wide = wide;
      SCOPED_TRACE(str(name, ": ", text(p)));
      expect_close(p, run_gpu(name, p, in), want);
      expect_close(p, run_gpu_in_parts(name, p, in, p.tokens() / 2, p.tokens() / 3), want);
    }
}

// Rows start and end within blocks, and lists are split.
TEST_F(GpuAttention, BlockPatternsInAnyOrder) {
  for (std::int64_t dim : {64, 128}) {
    for (std::int32_t block : {64, 128})
      for (bool causal : {true, false}) {
        GpuProblem p{offsets_of({130, 290, 430}, 3), 4, 2, dim, block_sparse(block, {random_rule(0.3, 7)}, causal)};
        p.rows = {3};
        p.after = 5;
        expect_right_in_any_order(p);
      }
    expect_right_in_any_order({offsets_of({1500}), 2, 1, dim, block_sparse(64, {{.local = 1, .first = 1}})});
  }
}

// Many blocks of keys add to a tile: the first one stores, and the others add in any order.
TEST_F(GpuAttention, IntervalsInAnyOrder) {
  for (std::int64_t dim : {64, 128})
    for (bool causal : {true, false})
      for (const Pattern& pattern :
           {dense(causal), window(300, 0, causal), dilated({{300, 1}, {1400, 2}}, false, 1, causal)}) {
        GpuProblem p{offsets_of({130, 1290, 628}), 4, 2, dim, pattern};
        p.after = 7;
        expect_right_in_any_order(p);
      }
}

// f32 results are not rounded: two calls of which one rounds differ only by the rounding.
TEST_F(GpuAttention, ResultsInF32AreThoseBeforeRounding) {
  for (const Pattern& pattern : patterns(true))
    for (std::int64_t dim : {64, 128, 256}) {
      GpuProblem p = problem(pattern, dim, true);
      const AttentionInputs in = gpu_inputs(p);
      for (const std::string& name : own_candidates(p)) {
        SCOPED_TRACE(str(name, ": ", text(p)));
        p.wide = false;
        const AttentionResults narrow = run_gpu(name, p, in);
        p.wide = true;
        AttentionResults wide = run_gpu(name, p, in);
        EXPECT_NE(wide.out, narrow.out);
        for (Values* v : {&wide.out, &wide.dq, &wide.dk, &wide.dv}) *v = rounded(*v, DType::bf16);
        EXPECT_TRUE(wide == narrow);
      }
    }
}

// Parts begin and end within documents, blocks and segments; with causal attention some parts see nothing.
TEST_F(GpuAttention, PartsAddUp) {
  for (bool causal : {true, false})
    for (const Pattern& pattern : patterns(causal))
      for (std::int64_t dim : {64, 128, 256})
        for (DType type : {DType::bf16, DType::f32}) {
          GpuProblem p = problem(pattern, dim, true);
          p.dtype = type;
          const AttentionInputs in = gpu_inputs(p);
          const AttentionResults want = reference(p.problem(), in);
          for (const std::string& name : own_candidates(p))
            for (const std::int64_t cut : {132, 200, 448}) {
              SCOPED_TRACE(str(name, ": ", text(p), ", cut at ", cut));
              expect_close(p, run_gpu_in_parts(name, p, in, 248, cut), want);
            }
        }
}

}  // namespace
}  // namespace ring::test
