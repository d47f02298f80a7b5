// The lists of a selection on a GPU: every entry against the selection's bits, for documents that share blocks. A step
// that selects never waits, and can be recorded.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/attention/cuda/lists.h"
#include "kernels/attention/selected/block_select.h"
#include "tests/kept_blocks.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"

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

// Returns the expected list: coverage of blocks of 64 positions by bits and causality, in the tiles of the columns.
std::vector<std::int32_t> entries_of(const AttentionProblem& p, std::size_t span, Stationary owner, std::int32_t head,
                                     std::int32_t tile, std::int32_t halves, const cuda::TileRange& columns) {
  const std::int64_t origin = p.pattern.origin(p.queries[span].document);
  const auto q_first = static_cast<std::int32_t>(p.queries[span].position - origin);
  const auto k_first = static_cast<std::int32_t>(p.keys[span].position - origin);
  const auto keeps = [&](std::int32_t row, std::int32_t column) {
    if (row >= halves) return BlockCoverage::none;
    const std::int32_t q = owner == Stationary::q ? row : column, k = owner == Stationary::q ? column : row;
    if (!p.selection_rows.empty() && p.selection_rows[span] + q * 64 / p.pattern.blocks->block() < 0)
      return BlockCoverage::none;
    const bool kept = q >= k && p.selects(span, head, q * 64 + 63 - q_first, k * 64 - k_first);
    return kept ? coverage_of(owner, row, column, true) : BlockCoverage::none;
  };
  std::vector<std::int32_t> entries;
  for (std::int32_t column = 2 * columns.first; column < std::min(halves, 2 * columns.end); ++column) {
    const BlockCoverage first = keeps(2 * tile, column), second = keeps(2 * tile + 1, column);
    if (first != BlockCoverage::none || second != BlockCoverage::none)
      entries.push_back(list_entry(column, first, second));
  }
  return entries;
}

struct ListOf {
  int piece, head, tile;
  auto operator<=>(const ListOf&) const = default;
};

// Returns the items of each list, ordered by their entries, without items that have no rows.
std::map<ListOf, std::vector<ListItem>> items_of(const cuda::DeviceLists& lists, const std::vector<SegmentPair>& pieces,
                                                 Stationary owner, const ExecContext& ctx) {
  std::map<ListOf, std::vector<ListItem>> items;
  for (const ListItem& i : read_elements<ListItem>(lists.order, lists.items, ctx)) {
    const cuda::TileRange tiles = cuda::list_tiles(pieces.at(static_cast<std::size_t>(i.piece)), owner);
    if (i.tile == tiles.end && i.begin == i.end) continue;
    EXPECT_TRUE(i.tile >= tiles.first && i.tile < tiles.end);
    items[{i.piece, i.kv_head, i.tile}].push_back(i);
  }
  for (auto& [of, all] : items) std::ranges::sort(all, {}, &ListItem::begin);
  return items;
}

// Expects that parts have slots of their own, which their list's split names in order. Lists that are not split have
// none.
void expect_slots(const cuda::DeviceLists& lists, const std::map<ListOf, std::vector<ListItem>>& items, bool cuts,
                  const ExecContext& ctx) {
  std::map<ListOf, cuda::SplitList> splits;
  for (const cuda::SplitList& s : read_elements<cuda::SplitList>(lists.splits, lists.split_lists, ctx))
    if (s.parts > 0) splits[{s.piece, s.kv_head, s.tile}] = s;
  EXPECT_EQ(!splits.empty(), cuts);
  std::set<int> slots;
  for (const auto& [of, all] : items) {
    const cuda::SplitList split = splits.contains(of) ? splits[of] : cuda::SplitList{0, 0, -1, 1};
    EXPECT_EQ(std::ssize(all), split.parts);
    for (int i = 0; i < std::ssize(all); ++i) {
      const ListItem& part = all[static_cast<std::size_t>(i)];
      EXPECT_EQ(part.part, split.first_slot + i);
      EXPECT_TRUE(part.part < lists.slots || part.part == -1);
      EXPECT_TRUE(split.parts == 1 || slots.insert(part.part).second);
      EXPECT_TRUE(i == 0 || part.begin == all[static_cast<std::size_t>(i - 1)].end);
    }
  }
}

// cuts: at least one list is long enough to be split.
void expect_lists(const AttentionProblem& p, Stationary owner, bool cuts, const ExecContext& ctx) {
  std::vector<SegmentPair> pieces =
      segment_pairs_of(passes_of(p.pattern)[0], p.pattern, p.queries, p.keys, p.selection_rows);
  cuda::SelectedShape shape{owner, p.pattern.blocks->block(), p.kv_heads};
  for (const SegmentPair& s : pieces) shape.add(s);
  const Tensor memory = device_bytes(pieces, ctx);
  const BlockSelection selection{kept_of_bits(p.selection, p.kv_heads, p.words(), ctx)};
  shape.kept = selection.kept.dim(2);
  const cuda::DeviceLists lists =
      cuda::selected_lists(selection, reinterpret_cast<const SegmentPair*>(memory.raw()), shape, ctx);
  const auto entries = to_host<std::int32_t>(lists.entries, ctx.stream);
  const auto items = items_of(lists, pieces, owner, ctx);
  EXPECT_EQ(std::ssize(items), shape.tiles * p.kv_heads);
  expect_slots(lists, items, cuts, ctx);
  for (const auto& [of, all] : items) {
    const SegmentPair& s = pieces.at(static_cast<std::size_t>(of.piece));
    const std::vector<std::int32_t> got(entries.begin() + all.front().begin, entries.begin() + all.back().end);
    EXPECT_EQ(got, entries_of(p, static_cast<std::size_t>(of.piece), owner, of.head, of.tile,
                              (std::max(s.q_end, s.k_end) + 63) / 64, cuda::list_tiles(s, other(owner))))
        << "blocks of " << p.pattern.blocks->block() << ", document " << of.piece << ", head " << of.head << ", tile "
        << of.tile;
  }
}

AttentionProblem whole_documents(std::int32_t block) {
  return with_selection(problem_of(content(block, 100), offsets_of({700, 1, 4200, 60, 128}, 3), {3, 704}, 5));
}
// Parts of some documents, as ranks hold them.
AttentionProblem parts_of_documents(std::int32_t block) {
  const AttentionProblem whole = whole_documents(block);
  std::vector<Span> queries = whole.queries, keys = whole.keys;
  queries[0].position += 400, queries[0].count = 300;
  queries[2].position += 2100, queries[2].count = 1050;
  keys[2].position += 70, keys[2].count = 2400;
  keys[4].count = 64;
  return with_other_rows(whole, queries, keys);
}

// A chunk that begins in the second half of a tile, without the selection's rows of earlier blocks.
AttentionProblem later_chunk(std::int32_t block) {
  const AttentionProblem whole = with_selection(problem_of(content(block, 100), {0, 4200, 4500}));
  const std::vector<Span> queries = {{0, 2088, 64 * 33, 0}, {2088, 300, 4200, 4200}};
  return without_earlier_rows(with_other_rows(whole, queries, whole.keys));
}

// Every query block keeps at most three blocks, so lists are much shorter than the number of blocks. Many keep block 1.
AttentionProblem few_blocks(std::int32_t block) {
  AttentionProblem p = problem_of(content(block, 3), offsets_of({700, 1, 128 * 70 + 60, 128}, 3), {3, 704}, 5);
  const std::vector<std::int32_t> first = first_blocks(p.pattern, p.queries);
  const std::int64_t words = p.words();
  p.selection.assign(static_cast<std::size_t>(first.back() * p.kv_heads * words), 0);
  for (std::size_t b = 0; b < p.queries.size(); ++b)
    for (std::int32_t i = 0; i < first[b + 1] - first[b]; ++i)
      for (std::int64_t h = 0; h < p.kv_heads; ++h)
        for (const std::int32_t k : {i, std::min(i, 1), static_cast<std::int32_t>((i * 37 + h) % (i + 1))}) {
          std::int32_t& word =
              p.selection[static_cast<std::size_t>(((first[b] + i) * p.kv_heads + h) * words + k / 32)];
          word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1u << (k % 32));
        }
  return p;
}

TEST_F(GpuSelectedLists, AreWhatTheBitsSay) {
  for (std::int32_t block : {64, 128})
    for (Stationary owner : {Stationary::q, Stationary::kv}) {
      expect_lists(few_blocks(block), owner, owner == Stationary::kv, exec());
      expect_lists(whole_documents(block), owner, owner == Stationary::kv, exec());
      expect_lists(parts_of_documents(block), owner, false, exec());
      expect_lists(later_chunk(block), owner, false, exec());
    }
}

// Selection, forward and backward of one attention call.
struct Step {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  std::vector<Span> spans{{0, 2000, 0, 0}, {2000, 900, 0, 0}};
  Pattern pattern;

  explicit Step(const ExecContext& ctx, float mass = 1) {
    pattern = block_sparse(64, {{.kind = BlockRuleKind::content, .local = 1, .keep = 9, .mass = mass}});
    const auto made = [&](const char* name, std::int64_t heads) {
      return make_tensor({2900, heads, 64}, DType::bf16, random_values(name, 2900 * heads * 64), ctx);
    };
    q = made("q", 4), k = made("k", 2), v = made("v", 2), dout = made("dout", 4);
    out = ctx.empty(q.shape(), DType::bf16), lse = ctx.empty({4, 2900});
    dq = ctx.empty(q.shape(), DType::bf16), dk = ctx.empty(k.shape(), DType::bf16);
    dv = ctx.empty(k.shape(), DType::bf16);
  }
  void run(const ExecContext& ctx) const {
    const BlockSelection selection = select_blocks(pattern, q, k, 0.125f, spans, ctx);
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
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};  // a poisoned context would wait
  const Step step(ctx);
  step.run(ctx);
  const std::vector<Values> first = step.results(ctx);
  const std::uint64_t before = host_wait_count();
  step.run(ctx);
  EXPECT_EQ(host_wait_count(), before);
  EXPECT_TRUE(step.results(ctx) == first);
}

TEST_F(GpuSelectedLists, AreMadeAnewByARecordedStep) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  for (const float mass : {1.0f, 0.55f}) {
    SCOPED_TRACE(str("mass ", mass));
    const Step step(ctx, mass), other(ctx, mass);
    step.run(ctx);
    const std::vector<Values> first = step.results(ctx);
    const auto work = ctx.stream.impl().record_work([&] { step.run(ctx); });
    ASSERT_TRUE(work);
    work->launch();
    EXPECT_TRUE(step.results(ctx) == first);
    copy(step.k, step.v, ctx.stream);  // other keys select other blocks in the same recording
    copy(other.k, step.v, ctx.stream);
    other.run(ctx);
    work->launch();
    EXPECT_TRUE(step.results(ctx) == other.results(ctx));
    EXPECT_FALSE(step.results(ctx) == first);
  }
}

}  // namespace
}  // namespace ring::test
