// Blocks selected in a sequence in chunks (train.sequence_chunk): attention and its gradients against their definition
// in fp64, the gradients of what scores the blocks, and what is fetched.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "autograd/selected/block_means.h"
#include "kernels/attention/learned/block_index.h"
#include "parallel/context/chunk_selection.h"
#include "parallel/context/chunked_context.h"
#include "parallel/context/layout.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

// Values that f32 holds exactly, so that the definition gets the same inputs.
Values normals(std::uint32_t which, std::int64_t n) {
  Values v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(random_normal({21, which, 0}, static_cast<std::uint64_t>(i)));
  return v;
}
Tensor tensor_of(const Shape& shape, const Values& values, const ExecContext& ctx) {
  return from_host(std::vector<float>(values.begin(), values.end()), ctx.stream).view(shape);
}
Values values_of(const Tensor& t, const ExecContext& ctx) {
  const std::vector<float> values = to_host<float>(t.view({t.numel()}), ctx.stream);
  return {values.begin(), values.end()};
}

constexpr std::int32_t kChunkedTokens = 448, kChunkBlock = 64;
constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 8;

// Two packed documents, of which the second starts within a block.
const std::vector<std::int32_t> kStarts = {0, 150, kChunkedTokens};
std::vector<Span> chunked_documents() { return {{0, 150, 0, 0}, {150, kChunkedTokens - 150, 150, 150}}; }
Pattern selecting_pattern() {
  const BlockRule one{.kind = BlockRuleKind::content, .local = 1, .first = 1, .keep = 3},
      other{.kind = BlockRuleKind::content, .local = 1, .keep = 2};
  return block_sparse(kChunkBlock, {one, other});
}
ContextShards chunk_shards(int chunk, int chunks) {
  return ContextLayout(ContextLayoutKind::contiguous, kChunkedTokens, chunks, kChunkBlock)
      .shards(chunk, 1, chunked_documents());
}

struct Gradients {
  Values q, k, v;
};

// Returns the gradients of sum(dout * out) as defined; kept(kv, t, u): true if query t sees key u.
template <class Kept>
Gradients gradients_by_definition(const AttentionShape& a, const Values& q, const Values& k, const Values& v,
                                  const Values& dout, const Kept& kept) {
  Gradients d{Values(q.size()), Values(k.size()), Values(v.size())};
  const auto row = [&](std::int64_t n, std::int64_t heads, std::int64_t h) { return (n * heads + h) * a.dim; };
  for (std::int64_t h = 0; h < a.heads; ++h)
    for (std::int64_t t = 0; t < a.tokens(); ++t) {
      const std::int64_t kv = h * a.kv_heads / a.heads, at = row(t, a.heads, h);
      Values p(static_cast<std::size_t>(t) + 1), dp(p.size());
      double total = 0, mean = 0;
      for (std::int64_t u = 0; u <= t; ++u) {
        const std::int64_t from = row(u, a.kv_heads, kv);
        const auto i = static_cast<std::size_t>(u);
        if (!kept(kv, t, u)) continue;
        total += p[i] = std::exp(a.scale * dot(q.data() + at, k.data() + from, a.dim));
        dp[i] = dot(dout.data() + at, v.data() + from, a.dim);
      }
      for (std::size_t u = 0; u < p.size(); ++u) mean += (p[u] /= total) * dp[u];
      for (std::int64_t u = 0; u <= t; ++u) {
        const double weight = p[static_cast<std::size_t>(u)],
                     ds = a.scale * weight * (dp[static_cast<std::size_t>(u)] - mean);
        for (std::int64_t c = 0; c < a.dim; ++c) {
          const auto own = static_cast<std::size_t>(at + c),
                     other = static_cast<std::size_t>(row(u, a.kv_heads, kv) + c);
          d.q[own] += ds * k[other], d.k[other] += ds * q[own], d.v[other] += weight * dout[own];
        }
      }
    }
  return d;
}

void expect_close(const char* name, const Values& want, const Tensor& got, std::int64_t first_row,
                  const ExecContext& ctx) {
  const Values values = values_of(got, ctx);
  const auto offset = static_cast<std::size_t>(first_row) * values.size() / static_cast<std::size_t>(got.dim(0));
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], want[offset + i], 2e-5) << name << " " << offset + i;
}

class ChunkSelection : public testing::TestWithParam<std::size_t> {};  // bytes of host memory
INSTANTIATE_TEST_SUITE_P(Stores, ChunkSelection, testing::Values(0, std::size_t{1} << 24),
                         [](const auto& info) { return info.param ? "Host" : "Device"; });

TEST_P(ChunkSelection, AttendsAsDefined) {
  const ExecContext ctx{Stream::cpu(2)};
  const AttentionShape shape{kStarts, kHeads, kKvHeads, kDim, 1 / std::sqrt(8.0), selecting_pattern(), {0}};
  const auto random = [](std::uint32_t which, std::int64_t heads) {
    return normals(which, kChunkedTokens * heads * kDim);
  };
  const Values q = random(0, kHeads), k = random(1, kKvHeads), v = random(2, kKvHeads), dout = random(3, kHeads);
  const Values out = attention_oracle(shape, q, k, v).out;
  const auto kept = [&](std::int64_t kv, std::int64_t t, std::int64_t u) {
    const std::int64_t first = t < kStarts[1] ? 0 : kStarts[1], origin = first / kChunkBlock * kChunkBlock;
    static std::map<std::array<std::int64_t, 2>, std::vector<bool>> known;
    auto& blocks = known[{kv, t / kChunkBlock * 2 + (first > 0)}];
    if (blocks.empty())
      blocks = kept_blocks(shape, q, k, kv, origin, first, first ? kChunkedTokens : kStarts[1],
                           static_cast<int>((t - origin) / kChunkBlock));
    return u >= first && blocks[static_cast<std::size_t>((u - origin) / kChunkBlock)];
  };
  const Gradients want = gradients_by_definition(shape, q, k, v, dout, kept);

  for (const int chunks : {2, 3, 7}) {
    SCOPED_TRACE(chunks);
    ChunkedContext all(ctx, GetParam());
    const auto run = [&](int chunk, ChunkedContext::Keep keep) {
      const auto shards = std::make_shared<const ContextShards>(chunk_shards(chunk, chunks));
      const std::int64_t first = shards->rows_by_rank[static_cast<std::size_t>(chunk)][0].global,
                         n = shards->tokens(chunk);
      const auto rows = [&](const Values& x, std::int64_t heads) {
        const auto begin = x.begin() + first * heads * kDim;
        return tensor_of({n, heads, kDim}, Values(begin, begin + n * heads * kDim), ctx);
      };
      const ChunkedContext::Chunk computing(&all, shards, keep);
      ContextExchange& layer = all.of_layer(0);
      Attention a{.q = rows(q, kHeads),
                  .k = rows(k, kKvHeads),
                  .v = rows(v, kKvHeads),
                  .out = ctx.empty({n, kHeads, kDim}),
                  .lse = ctx.empty({kHeads, n}),
                  .scale = static_cast<float>(shape.scale),
                  .pattern = shape.pattern};
      const BlockSelection selection = layer.forward({a}, shards, ctx, {});
      expect_close("out", out, a.out, first, ctx);
      if (keep != ChunkedContext::Keep::nothing) return;
      const AttentionBackward b{.q = a.q,
                                .k = a.k,
                                .v = a.v,
                                .out = a.out,
                                .lse = a.lse,
                                .dout = rows(dout, kHeads),
                                .dq = ctx.empty(a.q.shape()),
                                .dk = ctx.empty(a.k.shape()),
                                .dv = ctx.empty(a.v.shape()),
                                .scale = a.scale,
                                .pattern = a.pattern,
                                .selection = selection};
      layer.backward({b}, shards, ctx);
      expect_close("dq", want.q, b.dq, first, ctx);
      expect_close("dk", want.k, b.dk, first, ctx);
      expect_close("dv", want.v, b.dv, first, ctx);
    };
    for (int chunk = 0; chunk + 1 < chunks; ++chunk) run(chunk, ChunkedContext::Keep::for_backward);
    for (int chunk = chunks; chunk-- > 0;) run(chunk, ChunkedContext::Keep::nothing);
    EXPECT_EQ(all.host_bytes() > 0, GetParam() > 0);
  }
}

// The scores and lists of a chunk's blocks equal the corresponding rows for whole documents, and the gradients of the
// indexer's projections arrive in the chunks of the projections.
TEST(JoinedBlocksTest, GradientsReachEarlierChunks) {
  const ExecContext ctx{Stream::cpu(2)};
  const IndexShape shape{.heads = 2, .dim = 8, .kv_heads = kKvHeads, .count = kKvHeads};
  // Even the first chunk has as many blocks as the capacity of a list.
  const Pattern pattern = block_sparse(kChunkBlock, {{.kind = BlockRuleKind::content, .local = 1, .keep = 2}});
  const ContextShards whole = chunk_shards(0, 1);
  const ChunkBlocks all = chunk_blocks(whole, pattern);
  ASSERT_EQ(all, (ChunkBlocks{0, 8, 8}));  // three blocks, then five
  const std::vector<SelectedRows> documents = blocks_with_local_rows(whole, pattern);
  const Tensor x = tensor_of({8, shape.width()}, normals(4, 8 * shape.width()), ctx),
               d = tensor_of({8, kKvHeads, 2}, normals(5, 8 * kKvHeads * 2), ctx), dx = ctx.empty(x.shape());
  const IndexSelection made = select_by_index(x, {}, shape, documents, 8, pattern.blocks, ctx);
  const Tensor kept = made.selection.kept;
  ASSERT_EQ(kept.shape(), d.shape());
  index_scores_backward_kernel({x, kept, d, dx, shape, documents}, ctx);

  JoinedBlocks chunks;
  const auto run = [&](int chunk, bool backward) {
    const ContextShards shards = chunk_shards(chunk, 3);
    const ChunkBlocks own = chunk_blocks(shards, pattern);
    std::vector<SelectedRows> some = blocks_with_local_rows(shards, pattern);
    for (SelectedRows& r : some) r.kept -= own.first;
    const Tensor joined = chunks.join(x.narrow(0, own.first, own.count()), own, ctx);
    ASSERT_EQ(joined.dim(0), own.end);
    const auto own_rows = [&](const Tensor& t) { return t.narrow(0, own.first, own.count()); };
    const IndexSelection part = select_by_index(joined, {}, shape, some, own.count(), pattern.blocks, ctx);
    ASSERT_EQ(part.scores.dim(2), 2);
    EXPECT_EQ(values_of(part.scores, ctx), values_of(own_rows(made.scores), ctx));
    EXPECT_EQ(to_host<std::int32_t>(part.selection.kept, ctx.stream),
              to_host<std::int32_t>(own_rows(kept), ctx.stream));
    if (!backward) return;
    const Tensor gradient = ctx.zeros(joined.shape());  // the kernel leaves rows of other documents
    index_scores_backward_kernel({joined, part.selection.kept, own_rows(d), gradient, shape, some}, ctx);
    expect_close("dx", values_of(dx, ctx), chunks.join_backward(gradient, own, ctx), own.first, ctx);
  };
  for (int chunk = 0; chunk < 3; ++chunk) run(chunk, false);
  for (int chunk = 3; chunk-- > 0;) run(chunk, true);
}

TEST(ChosenBlocksTest, OnlyTheirRowsAreFetched) {
  const ExecContext ctx{Stream::cpu(1)};
  const Pattern pattern = selecting_pattern();
  const ContextShards shards = chunk_shards(1, 2);  // chunks of 3 and 4 blocks
  const std::vector<ChunkPlan> plans = make_chunk_plans(shards, pattern, kKvHeads, SpanPositions::in_order);
  ASSERT_EQ(plans[1].earlier.size(), 1u);
  const KeyRequest& need = plans[1].earlier[0].need;  // rows 150 to 191, of block 0 of the second document
  EXPECT_EQ(need.rows, 42);
  std::vector<std::int32_t> kept(4 * kKvHeads, kNoBlock);  // query blocks 1 to 4 of this document
  const auto parts = [&] {
    const BlockSelection selection{from_host(kept, ctx.stream).view({4, kKvHeads, 1})};
    return ChosenBlocks(selection, pattern, shards, ctx.stream).parts_of(need, pattern, 16);
  };
  for (std::int32_t i = 0; i < 4; ++i) kept[static_cast<std::size_t>(2 * i)] = i + 1;  // only the query's own block
  EXPECT_EQ(parts()->size(), 0u);
  kept[5] = 0;                                                                 // the other head of query block 3
  EXPECT_EQ(*parts(), (std::vector<ChunkStore::Elements>{{0, 2 * 42 * 16}}));  // keys and values are adjacent
  EXPECT_FALSE(ChosenBlocks().parts_of(need, pattern, 16).has_value());
}

TEST(ChunkStoreParts, AreCopiedAlone) {
  const ExecContext ctx{Stream::cpu(1)};
  ChunkStore store(ctx, std::size_t{1} << 20);
  const ChunkStore::Key key{};
  const ChunkStore::Parts parts = std::vector<ChunkStore::Elements>{{1, 2}, {5, 1}};
  store.put(key, from_host(std::vector<float>{1, 2, 3, 4, 5, 6}, ctx.stream));
  store.free_stored();
  EXPECT_EQ(to_host<float>(store.keys(key, parts), ctx.stream), (std::vector<float>{0, 2, 3, 0, 0, 6}));
  EXPECT_EQ(to_host<float>(store.keys(key), ctx.stream), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  store.add_gradients(key, from_host(std::vector<float>{1, 0, 0, 0, 0, 0}, ctx.stream),
                      std::vector<ChunkStore::Elements>{{0, 1}});
  store.add_gradients(key, from_host(std::vector<float>{0, 2, 3, 0, 0, 6}, ctx.stream), parts);
  store.add_gradients(key, ctx.zeros({6}), std::vector<ChunkStore::Elements>{});
  EXPECT_EQ(to_host<float>(store.gradients(key), ctx.stream), (std::vector<float>{1, 2, 3, 0, 0, 6}));
}

}  // namespace
}  // namespace ring::test
