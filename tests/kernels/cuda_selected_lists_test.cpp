// The lists of a selection on a GPU: every entry against the bits, for documents that share blocks; and that a step
// that selects waits for nothing and can be recorded.

#include <gtest/gtest.h>

#include <map>

#include "kernels/attention/cuda/lists.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

using cuda::ListItem;

class GpuSelectedLists : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
  static ExecContext exec() { return poisoned_device_context({Backend::cuda, 0}); }
};

template <class T>
Tensor device_bytes(const std::vector<T>& values, const ExecContext& ctx) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  const Tensor t = ctx.empty({bytes}, DType::u8);
  ctx.stream.impl().copy(t.raw(), values.data(), static_cast<std::size_t>(bytes));
  return t;
}
template <class T>
std::vector<T> read(const Tensor& t, std::int64_t count, const ExecContext& ctx) {
  std::vector<T> host(static_cast<std::size_t>(count));
  ctx.stream.impl().copy(host.data(), t.raw(), host.size() * sizeof(T));
  ctx.stream.synchronize();
  return host;
}

Pattern content(std::int32_t block, std::int32_t keep) {
  return block_sparse(block, {{.kind = BlockRuleKind::content, .local = 1, .keep = keep}});
}

// What a list must be: whether blocks of 64 positions are kept, by bits and causality.
std::vector<std::int32_t> entries_of(const AttentionProblem& p, std::size_t span, Stationary owner, std::int32_t head,
                                     std::int32_t tile, std::int32_t halves) {
  const std::int32_t skipped = p.queries[span].document % p.pattern.blocks->block();
  const auto keeps = [&](std::int32_t row, std::int32_t column) {
    if (row >= halves) return BlockCoverage::none;
    const std::int32_t q = owner == Stationary::q ? row : column, k = owner == Stationary::q ? column : row;
    const bool kept = q >= k && p.selects(span, head, q * 64 + 63 - skipped, k * 64 - skipped);
    return kept ? coverage_of(owner, row, column, true) : BlockCoverage::none;
  };
  std::vector<std::int32_t> entries;
  for (std::int32_t column = 0; column < halves; ++column) {
    const BlockCoverage first = keeps(2 * tile, column), second = keeps(2 * tile + 1, column);
    if (first != BlockCoverage::none || second != BlockCoverage::none)
      entries.push_back(list_entry(column, first, second));
  }
  return entries;
}

TEST_F(GpuSelectedLists, AreWhatTheBitsSay) {
  const ExecContext ctx = exec();
  for (std::int32_t block : {64, 128})
    for (Stationary owner : {Stationary::q, Stationary::kv}) {
      const AttentionProblem p =
          with_selection(problem_of(content(block, 100), offsets_of({700, 1, 4200, 60, 128}, 3), {3, 704}, 5));
      std::vector<SegmentPair> pieces = segment_pairs_of(passes_of(p.pattern)[0], p.pattern, p.queries, p.keys);
      cuda::SelectedShape shape{owner, block, p.kv_heads, 0, 0};
      for (const SegmentPair& s : pieces) {
        shape.tiles += cuda::list_tiles(s);
        shape.most_tiles = std::max<std::int64_t>(shape.most_tiles, cuda::list_tiles(s));
      }
      const Tensor memory = device_bytes(pieces, ctx);
      const BlockSelection selection{
          from_host(p.selection, ctx.stream)
              .view({std::ssize(p.selection) / p.words() / p.kv_heads, p.kv_heads, p.words()})};
      const cuda::DeviceLists lists =
          cuda::selected_lists(selection, reinterpret_cast<const SegmentPair*>(memory.raw()), shape, ctx);
      ASSERT_EQ(lists.items, shape.tiles * p.kv_heads);
      EXPECT_EQ(lists.slots + lists.split_lists, 0);
      const auto entries = to_host<std::int32_t>(lists.entries, ctx.stream);
      std::map<std::tuple<int, int, int>, int> seen;
      for (const ListItem& i : read<ListItem>(lists.order, lists.items, ctx)) {
        const SegmentPair& s = pieces.at(static_cast<std::size_t>(i.piece));
        ++seen[{i.piece, i.kv_head, i.tile}];
        ASSERT_TRUE(i.kv_head < p.kv_heads && i.tile < cuda::list_tiles(s) && i.part == -1);
        const std::vector<std::int32_t> got(entries.begin() + i.begin, entries.begin() + i.end);
        EXPECT_EQ(got, entries_of(p, static_cast<std::size_t>(i.piece), owner, i.kv_head, i.tile, (s.q_end + 63) / 64))
            << "blocks of " << block << ", document " << i.piece << ", head " << i.kv_head << ", tile " << i.tile;
      }
      EXPECT_EQ(std::ssize(seen), lists.items) << "each list once";
    }
}

// Selection, forward and backward of one call.
struct Step {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  std::vector<Span> spans{{0, 2000, 0, 0}, {2000, 900, 0, 0}};
  Pattern pattern = content(64, 5);

  explicit Step(const ExecContext& ctx) {
    const auto made = [&](const char* name, std::int64_t heads) {
      return make_tensor({2900, heads, 64}, DType::bf16, random_values(name, 2900 * heads * 64), ctx);
    };
    q = made("q", 4), k = made("k", 2), v = made("v", 2), dout = made("dout", 4);
    out = ctx.empty(q.shape(), DType::bf16), lse = ctx.empty({4, 2900});
    dq = ctx.empty(q.shape(), DType::bf16), dk = ctx.empty(k.shape(), DType::bf16);
    dv = ctx.empty(k.shape(), DType::bf16);
  }
  void run(const ExecContext& ctx) const {
    const BlockSelection selection = select_blocks(pattern, q, k, spans, ctx);
    attention_kernel({.q = q,
                      .k = k,
                      .v = v,
                      .out = out,
                      .lse = lse,
                      .queries = spans,
                      .keys = spans,
                      .scale = 0.125f,
                      .pattern = pattern,
                      .selection = selection},
                     ctx);
    attention_backward_kernel({.q = q,
                               .k = k,
                               .v = v,
                               .out = out,
                               .lse = lse,
                               .dout = dout,
                               .dq = dq,
                               .dk = dk,
                               .dv = dv,
                               .queries = spans,
                               .keys = spans,
                               .scale = 0.125f,
                               .pattern = pattern,
                               .selection = selection},
                              ctx);
  }
  std::vector<Values> results(const ExecContext& ctx) const {
    std::vector<Values> all;
    for (const Tensor* t : {&out, &dq, &dk, &dv}) all.push_back(read_values(*t, ctx));
    return all;
  }
};

TEST_F(GpuSelectedLists, NobodyWaitsForThem) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};  // poisoning waits
  const Step step(ctx);
  step.run(ctx);
  const std::vector<Values> first = step.results(ctx);
  const std::uint64_t before = host_waits();
  step.run(ctx);
  EXPECT_EQ(host_waits(), before);
  EXPECT_TRUE(step.results(ctx) == first);
}

TEST_F(GpuSelectedLists, AreMadeAnewByARecordedStep) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  const Step step(ctx), other(ctx);
  step.run(ctx);
  const std::vector<Values> first = step.results(ctx);
  const auto work = ctx.stream.impl().record_work([&] { step.run(ctx); });
  ASSERT_TRUE(work);
  work->launch();
  EXPECT_TRUE(step.results(ctx) == first);
  copy(step.k, step.v, ctx.stream);  // other keys: other blocks, in the same recording
  copy(other.k, step.v, ctx.stream);
  other.run(ctx);
  work->launch();
  EXPECT_TRUE(step.results(ctx) == other.results(ctx));
  EXPECT_FALSE(step.results(ctx) == first);
}

}  // namespace
}  // namespace ring::test
