// Lists of block patterns on a GPU: equal to the host's for every rule, however they are shared or split; the order of
// the work; the cache; and the sums over the parts of split lists.

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "core/step_arena.h"
#include "core/unavailable.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/cuda/lists.h"
#include "kernels/attention/head_segment.h"
#include "model/patterns.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

using cuda::build_lists;
using cuda::DeviceLists;
using cuda::ListCache;
using cuda::ListItem;
using cuda::lists_for;
using cuda::ListShape;
using cuda::SplitList;

class GpuBlockLists : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
  static ExecContext exec() { return poisoned_device_context({Backend::cuda, 0}); }
};

struct HostLists {
  std::vector<std::int32_t> entries;
  std::vector<ListItem> items;
  std::vector<SplitList> splits;
  HostLists(const DeviceLists& d, const ExecContext& ctx)
      : entries(to_host<std::int32_t>(d.entries, ctx.stream)),
        items(read_elements<ListItem>(d.order, d.items, ctx)),
        splits(read_elements<SplitList>(d.splits, d.split_lists, ctx)) {}
  static std::int32_t length(const ListItem& i) { return i.end - i.begin; }
  std::int32_t longest() const {
    std::int32_t most = 0;
    for (const ListItem& i : items) most = std::max(most, length(i));
    return most;
  }
};

// Rules for six heads: one is drawn by hand for 1600 blocks of 64, and two heads share a rule.
BlockPattern all_rules(std::int32_t block) {
  constexpr std::int32_t kRows = 1600, kWords = 50;
  std::vector<std::uint32_t> bits(7 + static_cast<std::size_t>(kRows * kWords), 0x10400021u);
  const std::vector<BlockRule> rules = {
      {.kind = BlockRuleKind::local_global, .local = 2, .first = 1, .every = 9},
      {.kind = BlockRuleKind::strided, .local = 1, .every = 5},
      {.kind = BlockRuleKind::hierarchical, .local = 2},
      {.kind = BlockRuleKind::random, .threshold = random_threshold(0.2), .seed = 9},
      {.kind = BlockRuleKind::drawn, .first_word = 7, .rows = kRows, .words = kWords},
  };
  return {block, rules, {0, 1, 2, 3, 4, 0, 3}, bits};
}

// Expects that the items of each tile make up the host's list. Parts of split lists have slots of their own and are in
// the list of splits.
void expect_lists(const BlockPattern& pattern, const ListShape& shape, const HostLists& got) {
  const BlockLists want = lists_of(pattern, shape.owner, shape.kv_heads, shape.length, shape.causal);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<ListItem>> tiles;
  for (const ListItem& i : got.items) tiles[{i.kv_head, i.tile}].push_back(i);
  ASSERT_EQ(tiles.size(), want.begins.size() - 1);
  std::set<std::int32_t> slots;
  std::size_t split = 0;
  for (auto& [place, parts] : tiles) {
    const auto [head, tile] = place;
    ASSERT_TRUE(head >= 0 && head < shape.kv_heads && tile >= 0 && tile < want.tiles) << head << ", " << tile;
    std::sort(parts.begin(), parts.end(), [](const ListItem& a, const ListItem& b) { return a.begin < b.begin; });
    std::vector<std::int32_t> list;
    const std::int64_t length = parts.back().end - parts[0].begin, count = static_cast<std::int64_t>(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSERT_TRUE(parts[i].begin < parts[i].end && parts[i].end <= static_cast<std::int32_t>(got.entries.size()));
      if (i > 0) {
        ASSERT_EQ(parts[i].begin, parts[i - 1].end);
        ASSERT_EQ(parts[i].begin - parts[0].begin, length * static_cast<std::int64_t>(i) / count);
      }
      list.insert(list.end(), got.entries.begin() + parts[i].begin, got.entries.begin() + parts[i].end);
      if (parts.size() == 1) {
        ASSERT_EQ(parts[i].part, -1);
        continue;
      }
      ASSERT_TRUE(slots.insert(parts[i].part).second) << "slot " << parts[i].part << " twice";
      ASSERT_EQ(parts[i].part, parts[0].part + static_cast<std::int32_t>(i));
    }
    if (parts.size() > 1) {
      ASSERT_LT(split, got.splits.size());
      const SplitList s = got.splits[split++];
      EXPECT_EQ((std::vector{s.kv_head, s.tile, s.first_slot, s.parts}),
                (std::vector{head, tile, parts[0].part, static_cast<std::int32_t>(parts.size())}));
    }
    const auto number = static_cast<std::size_t>(head * want.tiles + tile);
    const auto first = want.entries.begin() + want.begins[number],
               last = want.entries.begin() + want.begins[number + 1];
    ASSERT_EQ(list, std::vector<std::int32_t>(first, last)) << "head " << head << ", tile " << tile;
  }
  EXPECT_EQ(split, got.splits.size());
  EXPECT_EQ(slots.empty() ? 0 : *slots.rbegin() + 1, static_cast<std::int32_t>(slots.size()));
}

// Items are ordered by section, then longest first, then by head, tile and entries.
void expect_order(const ListShape& shape, const HostLists& got) {
  for (std::size_t i = 1; i < got.items.size(); ++i) {
    const ListItem &a = got.items[i - 1], &b = got.items[i];
    const std::int64_t before = a.kv_head / shape.section, here = b.kv_head / shape.section;
    ASSERT_LE(before, here) << "item " << i;
    if (before < here) continue;
    ASSERT_GE(HostLists::length(a), HostLists::length(b)) << "item " << i;
    if (HostLists::length(a) == HostLists::length(b)) {
      ASSERT_LT(std::tuple(a.kv_head, a.tile, a.begin), std::tuple(b.kv_head, b.tile, b.begin)) << "item " << i;
    }
  }
}

TEST_F(GpuBlockLists, EqualTheHosts) {
  for (const std::int32_t block : {64, 128})
    for (const std::int64_t length : {1, 64, 65, 128, 200, 4096, 8191 + 70})
      for (const bool causal : {true, false})
        for (const Stationary owner : {Stationary::q, Stationary::kv})
          for (const std::int64_t section : {1, 3, 7}) {
            SCOPED_TRACE(str("block ", block, ", ", length, causal ? " causal" : " full", " positions, owner ",
                             static_cast<int>(owner), ", section ", section));
            const ExecContext ctx = exec();
            const BlockPattern pattern = all_rules(block);
            const ListShape shape{owner, 7, length, causal, section};
            const DeviceLists lists = build_lists(pattern, shape, ctx);
            const HostLists got(lists, ctx);
            expect_lists(pattern, shape, got);
            expect_order(shape, got);
            EXPECT_EQ(lists.tiles, (length + 127) / 128);
            EXPECT_TRUE(owner == Stationary::kv || lists.split_lists == 0);
            const BlockLists want = lists_of(pattern, owner, 7, length, causal);
            const BlockLists dense = lists_of({64, {{.local = 1 << 20}}}, owner, 1, length, causal);
            EXPECT_NEAR(lists.density, double(want.entries.size()) / (7.0 * double(dense.entries.size())), 1e-12);
          }
}

TEST_F(GpuBlockLists, LongListsOfKeysAreCut) {
  const BlockPattern pattern(128, {{.kind = BlockRuleKind::local_global, .local = 4, .first = 1, .every = 64}});
  const ListShape shape{Stationary::kv, 2, 65536, true, 1};
  const ExecContext ctx = exec();
  const DeviceLists lists = build_lists(pattern, shape, ctx);
  const HostLists got(lists, ctx);
  expect_lists(pattern, shape, got);
  expect_order(shape, got);
  EXPECT_EQ(lists.split_lists, 2 * 8);  // the global blocks
  EXPECT_LE(got.longest(), 1024 / 16);
  EXPECT_LE(lists.items, 2 * 512 * 3 / 2);
  const HostLists queries(build_lists(pattern, {Stationary::q, 2, 65536, true, 1}, ctx), ctx);
  EXPECT_EQ(queries.items.size(), 2u * 512u);
}

// More rules than a launch carries, and more lists than planning has threads.
TEST_F(GpuBlockLists, OfManyHeads) {
  const BlockPattern pattern(
      64, {{.kind = BlockRuleKind::random, .threshold = random_threshold(0.1), .seed = 3}, {.local = 2, .first = 1}},
      {0, 0, 0, 1});
  for (const std::int64_t heads : {32, 33, 40})
    for (const Stationary owner : {Stationary::q, Stationary::kv})
      for (const std::int64_t section : {1, 16, 40}) {
        SCOPED_TRACE(str(heads, " heads, owner ", static_cast<int>(owner), ", section ", section));
        const ExecContext ctx = exec();
        const ListShape shape{owner, heads, 8191 + 70, true, section};
        const DeviceLists lists = build_lists(pattern, shape, ctx);
        const HostLists got(lists, ctx);
        expect_lists(pattern, shape, got);
        expect_order(shape, got);
        if (section == 1) {
          EXPECT_EQ(lists.split_lists > 0, owner == Stationary::kv);
        }
      }
}

TEST_F(GpuBlockLists, SameFromRunToRun) {
  const ExecContext ctx = exec();
  const BlockPattern pattern = all_rules(64);
  const ListShape shape{Stationary::kv, 7, 20000, true, 2};
  const HostLists a(build_lists(pattern, shape, ctx), ctx), b(build_lists(pattern, shape, ctx), ctx);
  EXPECT_EQ(a.entries, b.entries);
  ASSERT_EQ(a.items.size(), b.items.size());
  EXPECT_EQ(std::memcmp(a.items.data(), b.items.data(), a.items.size() * sizeof(ListItem)), 0);
}

TEST_F(GpuBlockLists, RefuseWhatTheFileDoesNotCover) {
  const ExecContext ctx = exec();
  EXPECT_THROW(build_lists(all_rules(64), {Stationary::q, 7, 1600 * 64 + 1, true, 1}, ctx), Error);
}

TEST_F(GpuBlockLists, HeadsShareTheL2CacheByTheirLength) {
  EXPECT_EQ(cuda::kv_heads_per_section(16, 65536, 512), 1);
  EXPECT_EQ(cuda::kv_heads_per_section(16, 8192, 512), 8);   // so that all multiprocessors are busy
  EXPECT_EQ(cuda::kv_heads_per_section(64, 1024, 512), 64);  // all heads
  EXPECT_EQ(cuda::kv_heads_per_section(64, 4096, 128), 48);  // as many as fit
}

// --- the cache ---

Pattern pattern_of(BlockPattern blocks) {
  Pattern p;
  p.blocks = std::make_shared<const BlockPattern>(std::move(blocks));
  return p;
}

TEST_F(GpuBlockLists, AreKeptByAllThatTheyDependOn) {
  const ExecContext ctx = exec();
  ListCache& cache = ctx.stream.impl().resource<ListCache>();
  Pattern pattern = pattern_of({64, {{.local = 2}}});
  const auto find = [&](Stationary owner, std::int64_t heads, std::int64_t length) {
    return lists_for(pattern, owner, heads, length, 512, ctx);
  };
  const DeviceLists first = find(Stationary::q, 2, 1024);
  EXPECT_EQ(cache.bytes(), first.bytes());
  EXPECT_EQ(find(Stationary::q, 2, 1024).entries.raw(), first.entries.raw());
  EXPECT_EQ(cache.lists(), 1u);
  find(Stationary::kv, 2, 1024);
  find(Stationary::q, 3, 1024);
  find(Stationary::q, 2, 1025);
  pattern.causal = false;
  find(Stationary::q, 2, 1024);
  pattern.causal = true;
  EXPECT_EQ(cache.lists(), 5u);
  pattern = pattern_of({64, {{.local = 2}}});  // a new object with equal contents
  find(Stationary::q, 2, 1024);
  EXPECT_EQ(cache.lists(), 5u);
  pattern = pattern_of(pattern.blocks->with_rules({{.local = 2}}));
  find(Stationary::q, 2, 1024);
  pattern = pattern_of({64, {{.local = 3}}});
  find(Stationary::q, 2, 1024);
  EXPECT_EQ(cache.lists(), 7u);
}

TEST_F(GpuBlockLists, LeastRecentlyUsedGoFirst) {
  const ExecContext ctx = exec();
  ListCache& cache = ctx.stream.impl().resource<ListCache>();
  const Pattern pattern = pattern_of({64, {{.local = 2}}});
  const auto find = [&](std::int64_t length) { return lists_for(pattern, Stationary::q, 2, length, 512, ctx); };
  const DeviceLists a = find(4096), b = find(4095), c = find(4094);
  find(4096);
  EXPECT_EQ(cache.bytes(), a.bytes() + b.bytes() + c.bytes());
  cache.set_limit(a.bytes() + c.bytes());
  EXPECT_EQ(cache.lists(), 2u);
  EXPECT_EQ(cache.bytes(), a.bytes() + c.bytes());
  EXPECT_EQ(find(4096).entries.raw(), a.entries.raw());
  EXPECT_NE(find(4095).entries.raw(), b.entries.raw());  // held here, but not cached: built again, and c is evicted
  EXPECT_EQ(find(4096).entries.raw(), a.entries.raw());
  EXPECT_EQ(cache.lists(), 2u);
  cache.set_limit(0);
  EXPECT_EQ(cache.bytes(), 0u);
  find(4096);  // the list in use is cached in spite of the limit
  EXPECT_EQ(cache.lists(), 1u);
}

TEST_F(GpuBlockLists, RecordedWorkKeepsIts) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  ListCache& cache = ctx.stream.impl().resource<ListCache>();
  const Pattern pattern = pattern_of({64, {{.local = 2}}});
  const auto find = [&](std::int64_t length) { return lists_for(pattern, Stationary::q, 2, length, 512, ctx); };
  const std::byte* recorded = find(4096).entries.raw();
  find(2048);
  const auto work = ctx.stream.impl().record_work([&] {
    EXPECT_EQ(find(4096).entries.raw(), recorded);
    try {
      find(1024);
      ADD_FAILURE() << "built while work is recorded";
    } catch (const Unavailable& e) {
      EXPECT_EQ(e.resource, Resource::recorded_lists) << e.what();
    }
  });
  cache.set_limit(0);
  EXPECT_EQ(cache.lists(), 1u);
  EXPECT_EQ(find(4096).entries.raw(), recorded);
}

TEST_F(GpuBlockLists, DoNotLieInTheMemoryOfAStep) {
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  Allocator& own = *ctx.stream.impl().allocator;
  const std::size_t before = own.stats().in_use;
  DeviceLists lists;
  {
    const auto arena = std::make_shared<StepArena>(ctx.stream.impl().allocator);
    const StepMemory memory(ctx.stream, arena);
    for (int i = 0; i < 4; ++i) {
      const StepScope step(*arena);
      const Tensor activation = ctx.empty({1 << 20});
      if (i == 3) lists = lists_for(pattern_of({64, {{.local = 2}}}), Stationary::kv, 2, 4096, 512, ctx);
    }
    ASSERT_TRUE(arena->has_slab());
    EXPECT_EQ(arena->stats().in_use, lists.bytes());  // everything else is freed
  }
  EXPECT_EQ(own.stats().in_use, before + lists.bytes());  // the lists remain, the slab is freed
}

// --- sums over parts ---

struct SumCase {
  DType type;
  bool carry, in_place;
};

TEST_F(GpuBlockLists, PartsAreAddedUp) {
  constexpr std::int64_t kDim = 40, kWidth = 64, kHeads = 2, kLength = 8000, kRows = 2 * kLength + 10;
  const BlockPattern pattern(128, {{.local = 1, .first = 2}, {.local = 1, .every = 20}}, {0, 1});
  // Two rows of a batch. The second one is a part of a document: it begins and ends within tiles that were split.
  const std::vector<SegmentPair> pieces = {{0, 0, 0, 3, 0, 8000, 0}, {0, 0, 0, 8005, 100, 5200, 0}};
  for (const SumCase c : {SumCase{DType::f32, false, false},
                          {DType::f32, true, false},
                          {DType::f32, true, true},
                          {DType::bf16, false, false},
                          {DType::bf16, true, false}}) {
    SCOPED_TRACE(str(c.type, c.carry ? ", carry" : "", c.in_place ? " in place" : ""));
    const ExecContext ctx = exec();
    const DeviceLists lists = build_lists(pattern, {Stationary::kv, kHeads, kLength, true, 1}, ctx);
    const std::vector<SplitList> splits = read_elements<SplitList>(lists.splits, lists.split_lists, ctx);
    ASSERT_GT(splits.size(), 3u);
    const Shape shape{kRows, kHeads, kDim}, slots{2, lists.slots, 128, kWidth};
    const Values partial = random_values("partial", slots.numel()), carry = random_values("carry", shape.numel());
    const Values before = random_values("before", shape.numel());
    const Tensor sums = make_tensor(slots, DType::f32, partial, ctx);
    const Tensor carried = c.carry ? make_tensor(shape, DType::f32, carry, ctx) : Tensor();
    const Tensor out = c.in_place ? carried : make_tensor(shape, c.type, before, ctx);
    Values want = read_values(out, ctx);
    const Values added = c.carry ? read_values(carried, ctx) : Values(want.size());
    for (std::size_t b = 0; b < 2; ++b)
      for (const SplitList& s : splits)
        for (std::int64_t r = 0, p = s.tile * 128; r < 128; ++r, ++p)
          for (std::int64_t i = 0; i < kDim && p >= pieces[b].k_first && p < pieces[b].k_end; ++i) {
            double sum = 0;
            for (std::int64_t part = s.first_slot; part < s.first_slot + s.parts; ++part)
              sum += partial[static_cast<std::size_t>(
                  ((static_cast<std::int64_t>(b) * lists.slots + part) * 128 + r) * kWidth + i)];
            const auto at = static_cast<std::size_t>(((pieces[b].k_row + p) * kHeads + s.kv_head) * kDim + i);
            want[at] = 0.25 * sum + added[at];
          }
    const Tensor on_device = ctx.empty({static_cast<std::int64_t>(pieces.size() * sizeof(SegmentPair))}, DType::u8);
    ctx.stream.impl().upload(on_device.raw(), pieces.data(), pieces.size() * sizeof(SegmentPair));
    add_splits(lists, reinterpret_cast<const SegmentPair*>(on_device.raw()), {sums, out, carried, 0.25f}, ctx);
    EXPECT_TRUE(close(read_values(out, ctx), want, c.type == DType::bf16 ? 4e-3 : 1e-6));
  }
}

}  // namespace
}  // namespace ring::test
