// Builds the lists of block patterns: counts the entries of each list, plans offsets and splits, orders the work items,
// and fills the lists. No atomics: every offset is computed from the counts. While the work items are ordered, the host
// reads the number of entries and allocates memory for them.
#include "kernels/attention/cuda/lists.h"

#include <algorithm>

#include "kernels/attention/cuda/list_cuts.cuh"
#include "kernels/attention/cuda/list_walk.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// Maximum bytes of the L2 cache (60 MB on an H200) that the rows streamed by running thread blocks should fill.
constexpr std::int64_t kL2Bytes = std::int64_t{24} << 20;
constexpr std::int64_t kBusyTiles = 512;  // minimum tiles of a section: twice as many as needed to occupy every SM

// KV heads that share their lists, since they follow the same rule.
struct ListSet {
  BlockRule rule;
  std::int32_t head, heads;  // first head, number of heads
};

// The sets, and the index of each KV head's set. A few sets are passed as launch parameters, which saves an upload.
struct ListSets {
  static constexpr int kFew = 32;
  const ListSet* many;  // null if there are at most kFew heads
  const std::int32_t* of_many;
  ListSet few[kFew];
  std::int32_t of_few[kFew];
  __device__ const ListSet& operator[](int set) const { return many ? many[set] : few[set]; }
  __device__ int of(int head) const { return many ? of_many[head] : of_few[head]; }
};

struct Walk {
  ListSets sets;
  ListWalk of;
  int lists;  // number of lists of all sets
};

// Walks the lists, one warp per list. If kCount, sets out[list] to the number of entries; otherwise writes the entries,
// in ascending order, to out + begins[list].
template <bool kCount>
__global__ void __launch_bounds__(kListWarps* kWarp)
    walk_lists(const __grid_constant__ Walk w, const std::int32_t* begins, std::int32_t* out) {
  const int list = static_cast<int>(blockIdx.x) * kListWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (list >= w.lists) return;
  const ListSet set = w.sets[list / w.of.tiles];
  const auto keeps = [&](int row, int column) {
    return w.of.owner == Stationary::q ? set.rule.keeps(set.head, row, column) : set.rule.keeps(set.head, column, row);
  };
  const int count = walk_list(w.of, keeps, list % w.of.tiles, kCount ? nullptr : out + begins[list], lane);
  if (kCount && lane == 0) out[list] = count;
}

struct Totals {
  std::int64_t entries, work;  // entries: sum over all sets; work: sum over all heads
  std::int32_t items, slots, split_lists;
};

struct ListPlan {
  const std::int32_t* counts;  // number of entries of each list, set by set
  int kv_heads, section;
  int processors;
  std::int32_t* begins;   // offset of each list, set by set
  std::int32_t* longest;  // length of the longest list that is not split (one value)
  Cuts* before;           // sums over all earlier lists, by KV head and tile; null if no list is split
  Totals* totals;         // totals in host memory

  __device__ int first_list(const Walk& w, int head) const { return w.sets.of(head) * w.of.tiles; }
};

__global__ void __launch_bounds__(kPlanThreads) plan_lists(const __grid_constant__ Walk w, ListPlan p) {
  const std::int64_t entries = sums_before<std::int64_t>(
      w.lists, [&](int list) { return std::int64_t{p.counts[list]}; },
      [&](int list, std::int64_t before) { p.begins[list] = static_cast<std::int32_t>(before); });
  std::int64_t work = 0;
  for (int list = static_cast<int>(threadIdx.x); list < w.lists; list += kPlanThreads)
    work += std::int64_t{p.counts[list]} * w.sets[list / w.of.tiles].heads;
  work = group_sum<kPlanThreads>(work);
  const int of_heads = p.kv_heads * w.of.tiles;
  const std::int32_t longest =
      p.before ? longest_uncut(work, of_heads, work * p.section / p.kv_heads, p.processors) : INT32_MAX;
  Cuts cuts{of_heads, 0, 0};
  if (p.before)
    cuts = sums_before<Cuts>(
        of_heads,
        [&](int list) {
          return cuts_of(parts_of(p.counts[p.first_list(w, list / w.of.tiles) + list % w.of.tiles], longest));
        },
        [&](int list, const Cuts& before) { p.before[list] = before; });
  if (threadIdx.x != 0) return;
  *p.longest = longest;
  *p.totals = {entries, work, cuts.items, cuts.slots, cuts.split_lists};
}

// Orders the items of each section: longest first; items of equal length by head, tile and entries. The position of an
// item is the number of items before it. One warp per list and head.
__global__ void __launch_bounds__(kListWarps* kWarp)
    order_lists(const __grid_constant__ Walk w, ListPlan p, ListItem* order, SplitList* splits) {
  const int list = static_cast<int>(blockIdx.x) * kListWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (list >= p.kv_heads * w.of.tiles) return;
  const int head = list / w.of.tiles, tile = list % w.of.tiles;
  const int first_head = head / p.section * p.section, end_head = min(first_head + p.section, p.kv_heads);
  const std::int32_t longest = *p.longest, begin = p.begins[p.first_list(w, head) + tile];
  const Parts mine = parts_of(p.counts[p.first_list(w, head) + tile], longest);
  const auto before = [&](int list) { return p.before ? p.before[list] : Cuts{list, 0, 0}; };
  // Returns the position of this list's first item with `length` entries. The items before it are those of the section
  // that are longer, or that have equal length and belong to an earlier list.
  const auto place_of = [&](std::int32_t length) {
    int place = 0;
    for (int h = first_head; h < end_head; ++h) {
      const std::int32_t* counts = p.counts + p.first_list(w, h);
      for (int other = lane; other < w.of.tiles; other += kWarp) {
        const Parts o = parts_of(counts[other], longest);
        const bool earlier = h < head || (h == head && other < tile);
        if (o.shorter > length)
          place += o.count;
        else if (o.shorter == length)
          place += earlier ? o.count : o.longer;
        else if (o.shorter + 1 == length && earlier)
          place += o.longer;
      }
    }
    return before(first_head * w.of.tiles).items + warp_sum(place);
  };
  const int of_shorter = place_of(mine.shorter), of_longer = mine.longer > 0 ? place_of(mine.shorter + 1) : 0;
  const auto longer_before = [&](std::int64_t part) {  // returns the number of longer parts of this list before `part`
    return static_cast<std::int32_t>(mine.longer * part / mine.count);
  };
  const Cuts at = before(list);
  for (int i = lane; i < mine.count; i += kWarp) {
    const std::int32_t longer = longer_before(i), is_longer = longer_before(i + 1) - longer;
    const std::int32_t from = begin + mine.shorter * i + longer;
    const int place = is_longer ? of_longer + longer : of_shorter + i - longer;
    order[place] = {head, tile, from, from + mine.shorter + is_longer, mine.count > 1 ? at.slots + i : -1};
  }
  if (mine.count > 1 && lane == 0) splits[at.split_lists] = {head, tile, at.slots, mine.count, 0};
}

// Groups heads with identical lists, and records the group of each head. Random rules are drawn per head, so their
// lists differ.
struct Sets {
  std::vector<ListSet> sets;
  std::vector<std::int32_t> of_head;
};
Sets sets_of(const BlockPattern& pattern, std::int64_t kv_heads) {
  Sets s;
  std::map<std::int32_t, std::int32_t> of_rule;
  for (std::int32_t head = 0; head < kv_heads; ++head) {
    const BlockRule& rule = pattern.rule(head);
    const auto next = static_cast<std::int32_t>(s.sets.size());
    const std::int32_t set =
        rule.kind == BlockRuleKind::random ? next : of_rule.try_emplace(pattern.rule_index(head), next).first->second;
    if (set == next) s.sets.push_back({rule, head, 0});
    ++s.sets[static_cast<std::size_t>(set)].heads;
    s.of_head.push_back(set);
  }
  return s;
}

template <class T>
Tensor uploaded(const std::vector<T>& values, const ExecContext& ctx) {
  const std::size_t bytes = values.size() * sizeof(T);
  const Tensor t = ctx.empty({static_cast<std::int64_t>(bytes)}, DType::u8);
  if (bytes > 0) ctx.stream.impl().upload(t.raw(), values.data(), bytes);
  return t;
}

// Allocates memory for the whole run: lists outlive the step that builds them.
template <class T>
Tensor lasting_array(std::int64_t count, const ExecContext& ctx) {
  return ctx.empty({count * static_cast<std::int64_t>(sizeof(T))}, DType::u8, Lifetime::run);
}
template <class T>
T* array(const Tensor& t) {
  return reinterpret_cast<T*>(t.raw());
}

// Page-locked memory for Totals: one buffer per stream, because it is expensive to allocate.
struct HostTotals {
  explicit HostTotals(StreamImpl& stream) : memory(stream.host_buffer(sizeof(Totals))) {}
  std::shared_ptr<void> memory;
};

// Blocks the host until the counts have arrived: they decide how much memory the lists need.
Totals read_totals(const HostTotals& host, const Event& known) {
  known.synchronize();  // allowed host wait: start
  const Totals t = *static_cast<const Totals*>(host.memory.get());
  RING_CHECK(t.entries <= kMaxListEntries, "attention: the lists of a block pattern have ", t.entries,
             " entries, but at most 2^30 - 1 are supported. Use a sparser pattern or a shorter context");
  return t;
}

double dense_entries(const Walk& w, std::int64_t kv_heads) {
  const double tiles = w.of.tiles, halves = w.of.halves;
  if (!w.of.causal) return static_cast<double>(kv_heads) * tiles * halves;
  const double of_keys = tiles * halves - tiles * (tiles - 1), of_queries = tiles * (tiles - 1) + halves;
  return static_cast<double>(kv_heads) * (w.of.owner == Stationary::kv ? of_keys : of_queries);
}

// Inputs of the kernels, with the memory that `walk` points to.
struct Input {
  Tensor bits, sets, of_head;
  Walk walk;
};
Input input_of(const BlockPattern& pattern, const ListShape& shape, const ExecContext& ctx) {
  Sets s = sets_of(pattern, shape.kv_heads);
  const std::int64_t tiles = divide_up(shape.length, kListRows);
  RING_CHECK(shape.kv_heads * tiles < std::int64_t{1} << 30, "block lists: ", shape.kv_heads, " KV heads of ", tiles,
             " tiles are too many");
  Input in;
  in.bits = uploaded(pattern.bits(), ctx);
  for (ListSet& set : s.sets)
    if (set.rule.kind == BlockRuleKind::drawn)
      set.rule.bits = array<const std::uint32_t>(in.bits) + set.rule.first_word;
  in.walk = {.sets = {},
             .of = {.owner = shape.owner,
                    .causal = shape.causal,
                    .whole = pattern.block() == kListRows,
                    .halves = static_cast<int>(divide_up(shape.length, kListColumns)),
                    .tiles = static_cast<int>(tiles)},
             .lists = static_cast<int>(tiles) * static_cast<int>(s.sets.size())};
  ListSets& sets = in.walk.sets;
  if (shape.kv_heads <= ListSets::kFew) {
    std::ranges::copy(s.sets, sets.few);
    std::ranges::copy(s.of_head, sets.of_few);
    return in;
  }
  in.sets = uploaded(s.sets, ctx);
  in.of_head = uploaded(s.of_head, ctx);
  sets.many = array<const ListSet>(in.sets);
  sets.of_many = array<const std::int32_t>(in.of_head);
  return in;
}

Launch by_warp(std::int64_t lists) { return {grid_of(divide_up(lists, kListWarps)), kListWarps * kWarp}; }

// Plans the lists, except the values of their entries: list offsets, splits and the order of work items.
DeviceLists planned(const Walk& walk, const ListShape& shape, const Tensor& counts, const Tensor& begins,
                    const ExecContext& ctx) {
  const bool cut = shape.owner == Stationary::kv;
  const std::int64_t whole = shape.kv_heads * walk.of.tiles;
  const Tensor before = ctx.empty({cut ? whole * static_cast<std::int64_t>(sizeof(Cuts)) : 0}, DType::u8);
  const Tensor longest = ctx.empty({1}, DType::i32);
  const auto& host = ctx.stream.impl().resource<HostTotals>();
  const ListPlan plan{.counts = counts.data<std::int32_t>(),
                      .kv_heads = static_cast<int>(shape.kv_heads),
                      .section = static_cast<int>(std::min(shape.section, shape.kv_heads)),
                      .processors = processors(ctx),
                      .begins = begins.data<std::int32_t>(),
                      .longest = longest.data<std::int32_t>(),
                      .before = cut ? array<Cuts>(before) : nullptr,
                      .totals = static_cast<Totals*>(host.memory.get())};
  launch(ctx, {grid_of(1), kPlanThreads}, plan_lists, walk, plan);
  const Event known = ctx.stream.record();
  DeviceLists lists;
  lists.tiles = walk.of.tiles;
  // Splitting adds at most one part per two lists, since a list is only split if it is longer than twice the mean.
  lists.order = lasting_array<ListItem>(whole + (cut ? whole / 2 : 0), ctx);
  lists.splits = lasting_array<SplitList>(cut ? whole / 2 : 0, ctx);
  launch(ctx, by_warp(whole), order_lists, walk, plan, array<ListItem>(lists.order), array<SplitList>(lists.splits));

  const Totals t = read_totals(host, known);
  lists.items = t.items;
  lists.slots = t.slots;
  lists.split_lists = t.split_lists;
  lists.density = static_cast<double>(t.work) / dense_entries(walk, shape.kv_heads);
  lists.entries = ctx.empty({t.entries}, DType::i32, Lifetime::run);
  return lists;
}

}  // namespace

std::int64_t kv_heads_per_section(std::int64_t kv_heads, std::int64_t length, std::int64_t stream_bytes) {
  const std::int64_t fits = kL2Bytes / std::max<std::int64_t>(1, stream_bytes * length);
  const std::int64_t busy = divide_up(kBusyTiles, std::max<std::int64_t>(1, divide_up(length, kListRows)));
  return std::clamp<std::int64_t>(std::max(fits, busy), 1, std::max<std::int64_t>(1, kv_heads));
}

DeviceLists build_lists(const BlockPattern& pattern, const ListShape& shape, const ExecContext& ctx) {
  RING_CHECK(shape.length > 0 && shape.length <= INT32_MAX && shape.kv_heads > 0 && shape.section > 0,
             "block lists: ", shape.kv_heads, " KV heads, ", shape.length, " positions, sections of ", shape.section);
  pattern.check_covers(shape.length, "attention");
  const Input in = input_of(pattern, shape, ctx);
  const Walk& walk = in.walk;
  const Tensor counts = ctx.empty({walk.lists}, DType::i32), begins = ctx.empty({walk.lists}, DType::i32);
  launch(ctx, by_warp(walk.lists), walk_lists<true>, walk, nullptr, counts.data<std::int32_t>());
  DeviceLists lists = planned(walk, shape, counts, begins, ctx);
  launch(ctx, by_warp(walk.lists), walk_lists<false>, walk, begins.data<std::int32_t>(),
         lists.entries.data<std::int32_t>());
  return lists;
}

}  // namespace ring::cuda
