// The attention mass of blocks on CPUs and GPUs, against its definition in fp64 over random selections.

#include "kernels/attention/selected/block_mass.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/selected/block_select.h"
#include "tests/kept_blocks.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

struct MassTarget {
  Backend backend = Backend::cpu;
  std::string candidate = "blocks";
  DType dtype = DType::f32;
  double tolerance = 2e-6;
};
void PrintTo(const MassTarget& t, std::ostream* out) { *out << t.candidate << "_" << t.dtype; }

class BlockMasses : public testing::TestWithParam<MassTarget> {
 protected:
  void SetUp() override {
    if (!backend_available(GetParam().backend)) GTEST_SKIP() << "no device";
  }
  ExecContext context(int threads = 3) const {
    return GetParam().backend == Backend::cpu ? poisoned_context(threads)
                                              : poisoned_device_context({GetParam().backend, 0});
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, BlockMasses, testing::Values(MassTarget{}));
INSTANTIATE_TEST_SUITE_P(Gpu, BlockMasses,
                         testing::Values(MassTarget{Backend::cuda, "own_simt", DType::f32, 1e-5},
                                         MassTarget{Backend::cuda, "own_simt", DType::bf16, 1e-5},
                                         MassTarget{Backend::cuda, "own_mma", DType::bf16, 1e-4}));

// Four query heads over two KV heads; a selection of about every second block.
AttentionProblem problem(std::int32_t block, const std::vector<std::int32_t>& lengths, std::int64_t dim,
                         const std::vector<std::int32_t>& rows = {}, std::int64_t after = 0) {
  AttentionProblem p = problem_of(content(block, 100), offsets_of(lengths, rows.empty() ? 0 : rows[0]), rows, after);
  p.dim = dim;
  return with_selection(p);
}

// Returns the defined mass: column j of row i is the mean over queries and heads of the weights of block j.
Values definition(const AttentionProblem& p, const AttentionInputs& in, const Values& lse, std::int64_t blocks) {
  const std::vector<std::int32_t> first = first_blocks(p.pattern, p.queries);
  const std::int32_t size = p.pattern.blocks->block();
  const std::int64_t group = p.heads / p.kv_heads;
  Values mass(static_cast<std::size_t>(first.back() * p.kv_heads * blocks));
  std::vector<int> rows(static_cast<std::size_t>(first.back()));
  for (std::size_t b = 0; b < p.queries.size(); ++b) {
    const Span& s = p.queries[b];
    const std::int32_t skipped = s.document % size;
    for (std::int32_t t = 0; t < s.count; ++t) {
      const std::int64_t row = first[b] + (t + skipped) / size;
      ++rows[static_cast<std::size_t>(row)];
      for (std::int64_t h = 0; h < p.heads; ++h)
        for (std::int32_t u = 0; u <= t; ++u) {
          if (!p.selects(b, h / group, t, u)) continue;
          double score = 0;
          for (std::int64_t c = 0; c < p.dim; ++c)
            score += in.q[static_cast<std::size_t>(((s.first + t) * p.heads + h) * p.dim + c)] *
                     in.k[static_cast<std::size_t>(((s.first + u) * p.kv_heads + h / group) * p.dim + c)];
          mass[static_cast<std::size_t>((row * p.kv_heads + h / group) * blocks + (u + skipped) / size)] +=
              std::exp(p.scale() * score - lse[static_cast<std::size_t>(h * p.query_rows + s.first + t)]);
        }
    }
  }
  for (std::size_t i = 0; i < mass.size(); ++i)
    mass[i] /= static_cast<double>(rows[i / static_cast<std::size_t>(p.kv_heads * blocks)] * group);
  return mass;
}

// Returns the kernel's mass; q and k are columns of one matrix.
Values measured(const MassTarget& target, const AttentionProblem& p, const AttentionInputs& in, const Values& lse,
                std::int64_t blocks, const ExecContext& ctx) {
  const std::int64_t wide = p.heads * p.dim, narrow = p.kv_heads * p.dim;
  Values both;
  for (std::int64_t n = 0; n < p.query_rows; ++n) {
    both.insert(both.end(), in.q.begin() + n * wide, in.q.begin() + (n + 1) * wide);
    both.insert(both.end(), in.k.begin() + n * narrow, in.k.begin() + (n + 1) * narrow);
  }
  const Tensor qk = make_tensor({p.query_rows, wide + narrow}, target.dtype, both, ctx);
  const Tensor kept = kept_of_bits(p.selection, p.kv_heads, p.words(), ctx);
  const BlockMass a{.q = qk.narrow(1, 0, wide).split_dim(1, p.dim),
                    .k = qk.narrow(1, wide, narrow).split_dim(1, p.dim),
                    .lse = make_tensor({p.heads, p.query_rows}, DType::f32, lse, ctx),
                    .mass = ctx.empty(kept.shape()),
                    .spans = p.queries,
                    .scale = static_cast<float>(p.scale()),
                    .pattern = p.pattern,
                    .selection = {kept}};
  for (const auto& c : block_mass_kernel.candidates(target.backend))
    if (c.name == target.candidate) {
      EXPECT_TRUE(!c.supports || c.supports(a, ctx));
      c.fn(a, ctx);
    }
  return by_block(read_values(a.mass, ctx), blocks, to_host<std::int32_t>(kept, ctx.stream), kept.dim(2));
}

std::int64_t max_blocks(const AttentionProblem& p) {
  std::int32_t most = 0;
  for (const Span& s : p.queries) most = std::max(most, blocks_of(p.pattern, s));
  return most;
}

Values rows_of(const Values& all, std::int64_t width, std::int64_t begin, std::int64_t end) {
  return {all.begin() + begin * width, all.begin() + end * width};
}

// Adds the mass of queries of the rows [begin, end) and keys of the rows [key, key_end), which the call's tensors hold.
void add_part(const MassTarget& target, const AttentionProblem& p, BlockMass a, std::int32_t begin, std::int32_t end,
              std::int32_t key, std::int32_t key_end, const ExecContext& ctx) {
  const std::vector<std::int32_t> first = first_blocks(p.pattern, p.queries);
  const auto part = [](const Span& s, std::int32_t from, std::int32_t to) {
    const std::int32_t row = std::max(s.first, from), row_end = std::min(s.first + s.count, to);
    return Span{row - from, row_end - row, s.position + row - s.first, s.document};
  };
  for (std::size_t b = 0; b < p.queries.size(); ++b) {
    const Span queries = part(p.queries[b], begin, end), keys = part(p.queries[b], key, key_end);
    if (queries.count <= 0 || keys.count <= 0) continue;
    a.spans.push_back(keys);
    a.queries.push_back(queries);
    a.selection.rows.push_back(first[b]);
  }
  if (a.spans.empty()) return;  // only padding
  for (const auto& c : block_mass_kernel.candidates(target.backend))
    if (c.name == target.candidate) c.fn(a, ctx);
}

// Returns the mass from calls for the queries of rows [cuts[i], cuts[i + 1]), which add to one output. parts_of_keys:
// each call has the keys of such rows, too.
Values measured_in_parts(const MassTarget& target, const AttentionProblem& p, const AttentionInputs& in,
                         const Values& lse, const std::vector<std::int32_t>& cuts, bool parts_of_keys,
                         const ExecContext& ctx) {
  const Tensor kept = kept_of_bits(p.selection, p.kv_heads, p.words(), ctx), mass = ctx.zeros(kept.shape());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::int32_t begin = cuts[i], end = cuts[i + 1];
    Values own_lse;
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int32_t n = begin; n < end; ++n) own_lse.push_back(lse[static_cast<std::size_t>(h * p.query_rows + n)]);
    BlockMass a{
        .q = make_tensor({end - begin, p.heads, p.dim}, target.dtype, rows_of(in.q, p.heads * p.dim, begin, end), ctx),
        .lse = make_tensor({p.heads, end - begin}, DType::f32, own_lse, ctx),
        .mass = mass,
        .scale = static_cast<float>(p.scale()),
        .pattern = p.pattern,
        .selection = {kept},
        .parts_of_keys = parts_of_keys};
    const auto keys = [&](std::int32_t key, std::int32_t key_end) {
      a.k = make_tensor({key_end - key, p.kv_heads, p.dim}, target.dtype,
                        rows_of(in.k, p.kv_heads * p.dim, key, key_end), ctx);
      add_part(target, p, a, begin, end, key, key_end, ctx);
    };
    if (!parts_of_keys) keys(0, static_cast<std::int32_t>(p.key_rows));
    for (std::size_t j = 0; parts_of_keys && j <= i; ++j) keys(cuts[j], cuts[j + 1]);
  }
  return by_block(read_values(mass, ctx), max_blocks(p), to_host<std::int32_t>(kept, ctx.stream), kept.dim(2));
}

void expect_mass(const MassTarget& target, const AttentionProblem& p, const ExecContext& ctx) {
  const AttentionInputs in = random_inputs(p, target.dtype);
  const Values lse = reference(p, in).lse;
  for (const std::int64_t blocks : {max_blocks(p), max_blocks(p) + 3}) {
    const Values want = definition(p, in, lse, blocks), got = measured(target, p, in, lse, blocks, ctx);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], target.tolerance) << "element " << i;
      ASSERT_EQ(got[i] == 0, want[i] == 0) << "element " << i;
    }
    for (std::size_t row = 0; row < want.size(); row += static_cast<std::size_t>(blocks)) {
      double sum = 0;
      for (std::size_t j = row; j < row + static_cast<std::size_t>(blocks); ++j) sum += got[j];
      ASSERT_NEAR(sum, 1, 20 * target.tolerance) << "row " << row;
    }
  }
}

void expect_mass_in_parts(const MassTarget& target, std::int32_t block, const std::vector<std::int32_t>& cuts,
                          bool parts_of_keys, const ExecContext& ctx) {
  const AttentionProblem p = problem(block, {300, 1, 70, 129, 250}, 40, {3, 304}, 5);
  const AttentionInputs in = random_inputs(p, target.dtype);
  const Values lse = reference(p, in).lse, want = definition(p, in, lse, max_blocks(p)),
               got = measured_in_parts(target, p, in, lse, cuts, parts_of_keys, ctx);
  ASSERT_EQ(p.query_rows, cuts.back());
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], target.tolerance) << "element " << i;
    ASSERT_EQ(got[i] == 0, want[i] == 0) << "element " << i;
  }
}

TEST_P(BlockMasses, AreThoseOfTheDefinition) {
  for (const std::int32_t block : {64, 128})
    for (const std::int64_t dim : {8, 24, 64, 104, 128, 200}) {
      SCOPED_TRACE(str("blocks of ", block, ", D ", dim));
      expect_mass(GetParam(), problem(block, {333}, dim), context());
    }
}

// Documents that start within blocks, a document of one token, padding after them; other groups of heads.
TEST_P(BlockMasses, OfPackedDocuments) {
  for (const std::int32_t block : {64, 128})
    for (const auto& [heads, kv_heads] : {std::pair<int, int>{4, 2}, {3, 3}, {6, 1}}) {
      SCOPED_TRACE(str("blocks of ", block, ", ", heads, " heads, ", kv_heads, " KV heads"));
      AttentionProblem p = problem_of(content(block, 100), offsets_of({300, 1, 70, 129, 250}, 3), {3, 304}, 5);
      p.heads = heads, p.kv_heads = kv_heads, p.dim = 16;
      expect_mass(GetParam(), with_selection(p), context());
    }
}

// Parts of several documents that begin at blocks and within them, some shorter than a block.
TEST_P(BlockMasses, OfSomeQueriesAddUpToThoseOfAll) {
  for (const std::int32_t block : {64, 128})
    for (const std::vector<std::int32_t>& cuts :
         {std::vector{0, 256, 758}, std::vector{0, 3, 130, 150, 303, 304, 400, 758}}) {
      SCOPED_TRACE(str("blocks of ", block, ", ", cuts.size() - 1, " parts"));
      expect_mass_in_parts(GetParam(), block, cuts, false, context());
    }
}

// Chunks of several documents: each call has the keys of one of them. Chunks end at blocks of a row, or with a row.
TEST_P(BlockMasses, OfSomeKeysAddUpToThoseOfAll) {
  for (const std::int32_t block : {64, 128})
    for (const std::vector<std::int32_t>& cuts : {std::vector{0, 259, 758}, std::vector{0, 131, 259, 304, 432, 758}}) {
      SCOPED_TRACE(str("blocks of ", block, ", ", cuts.size() - 1, " chunks"));
      expect_mass_in_parts(GetParam(), block, cuts, true, context());
    }
}

// More documents than one launch takes, and more blocks than a word has bits.
TEST_P(BlockMasses, OfManyDocumentsAndOfLongOnes) {
  std::vector<std::int32_t> lengths(70, 9);
  expect_mass(GetParam(), problem(64, lengths, 8), context());
  expect_mass(GetParam(), problem(64, {64 * 35 + 7}, 8), context());
}

// Results are bit-identical for any number of threads.
TEST_P(BlockMasses, RepeatTheirBits) {
  const AttentionProblem p = problem(64, {500, 200}, 40);
  const AttentionInputs in = random_inputs(p, GetParam().dtype);
  const Values lse = reference(p, in).lse;
  const Values one = measured(GetParam(), p, in, lse, max_blocks(p), context(1));
  EXPECT_EQ(one, measured(GetParam(), p, in, lse, max_blocks(p), context(3)));
}

// With the log-sum-exp of dense attention, a row sums to the share of dense mass in the kept blocks.
TEST_P(BlockMasses, SumToTheShareOfDenseAttention) {
  const AttentionProblem p = problem(64, {400}, 32);
  const AttentionInputs in = random_inputs(p, GetParam().dtype);
  AttentionProblem all = p;
  all.pattern = dense(), all.selection.clear();
  const Values dense = reference(all, in).lse, own = reference(p, in).lse;
  const std::int64_t blocks = max_blocks(p);
  const Values got = measured(GetParam(), p, in, dense, blocks, context());
  double least = 1;
  for (std::int32_t i = 0; i < blocks; ++i)
    for (std::int64_t g = 0; g < p.kv_heads; ++g) {
      double want = 0, sum = 0;
      const std::int32_t end = std::min(400, 64 * (i + 1));
      for (std::int64_t h = 2 * g; h < 2 * g + 2; ++h)
        for (std::int32_t t = 64 * i; t < end; ++t) {
          const auto at = static_cast<std::size_t>(h * 400 + t);
          want += std::exp(own[at] - dense[at]) / (2 * (end - 64 * i));
        }
      for (std::int64_t j = 0; j < blocks; ++j) sum += got[static_cast<std::size_t>((i * p.kv_heads + g) * blocks + j)];
      EXPECT_NEAR(sum, want, 20 * GetParam().tolerance);
      least = std::min(least, want);
    }
  EXPECT_LT(least, 0.9) << "everything was kept";
}

TEST(BlockMass, RefusesWhatDoesNotFit) {
  const ExecContext ctx{Stream::cpu(1)};
  const Tensor x = ctx.zeros({130, 2, 8});
  BlockMass good{.q = x,
                 .k = x,
                 .lse = ctx.zeros({2, 130}),
                 .mass = ctx.zeros({3, 2, 3}),
                 .spans = {{0, 130, 0, 0}},
                 .pattern = content(64, 100)};
  good.selection = select_blocks(good.pattern, x, x, good.scale, good.spans, ctx);
  EXPECT_NO_THROW(block_mass_kernel(good, ctx));
  const auto refuses = [&](const auto& change) {
    BlockMass bad = good;
    change(bad);
    EXPECT_THROW(block_mass_kernel(bad, ctx), Error);
  };
  refuses([&](BlockMass& a) { a.mass = ctx.zeros({3, 2, 2}); });
  refuses([&](BlockMass& a) { a.mass = ctx.zeros({2, 2, 3}); });
  refuses([&](BlockMass& a) { a.lse = ctx.zeros({130, 2}); });
  refuses([&](BlockMass& a) { a.k = ctx.zeros({130, 4, 8}); });
  refuses([&](BlockMass& a) { a.selection = {}; });
  refuses([&](BlockMass& a) { a.spans[0].count = 131; });
  refuses([&](BlockMass& a) { a.spans[0].position = 64; });
  refuses([&](BlockMass& a) { a.pattern = dense(); });
  good.selection.rows = {0}, good.queries = {{0, 60, 64, 0}};
  EXPECT_NO_THROW(block_mass_kernel(good, ctx));
  refuses([&](BlockMass& a) { a.selection.rows = {}; });
  refuses([&](BlockMass& a) { a.queries[0].position = 71; });
  refuses([&](BlockMass& a) { a.queries[0].document = 1; });
  refuses([&](BlockMass& a) { a.queries.push_back({}); });
  refuses([&](BlockMass& a) { a.queries[0].first = 71; });
  good.parts_of_keys = true;
  for (const std::int32_t keys : {64, 124}) {
    good.spans[0].count = keys;
    EXPECT_NO_THROW(block_mass_kernel(good, ctx));
  }
  refuses([&](BlockMass& a) { a.spans[0].count = 60; });
  refuses([&](BlockMass& a) { a.spans[0].count = 130; });
  refuses([&](BlockMass& a) { a.queries = {}; });
}

}  // namespace
}  // namespace ring::test
