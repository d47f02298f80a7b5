// Builds the lists of block patterns: counts each list, plans where all of them lie and how they are cut, orders the
// work, fills the lists. No atomics: every place follows from counts.
#include "kernels/attention/cuda/lists.h"

#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "core/step_arena.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// Share of an L2 cache (60 MB on an H200) that the rows streamed by the running blocks may fill.
constexpr std::int64_t kL2Bytes = std::int64_t{24} << 20;
constexpr std::int64_t kBusyTiles = 512;  // enough for every multiprocessor, twice
// A list is cut where it is longer than kLongest times the mean and than a section's work for half a multiprocessor.
constexpr std::int32_t kLongest = 2, kShortestCut = 16;
constexpr int kListWarps = 4, kPlanThreads = 1024, kPlanEach = 4, kOrderThreads = 256;

// Heads that share their lists.
struct ListSet {
  BlockRule rule;
  std::int32_t head, heads;  // the first of them, and how many
};

struct Walk {
  const ListSet* sets;
  Owner owner;
  bool causal, whole;  // whole: blocks of 128, else of 64
  int halves, tiles;   // blocks of 64 and of 128 positions
  int lists;           // of all sets
};

// The entries of an owner's tile for columns [128 pair, 128 pair + 128); 0: none.
__device__ int2 entries_of(const Walk& w, const ListSet& set, int tile, int pair) {
  const auto keeps = [&](int row, int column) {
    return w.owner == Owner::queries ? set.rule.keeps(set.head, row, column) : set.rule.keeps(set.head, column, row);
  };
  const bool all = w.whole && keeps(tile, pair);
  const auto kept = [&](int row, int column) {
    if (row >= w.halves || column >= w.halves) return Kept::none;
    const Kept most = kept_of(w.owner, row, column, w.causal);
    return most != Kept::none && (w.whole ? all : keeps(row, column)) ? most : Kept::none;
  };
  const auto entry = [&](int column) {
    const Kept first = kept(2 * tile, column), second = kept(2 * tile + 1, column);
    return first == Kept::none && second == Kept::none ? 0 : list_entry(column, first, second);
  };
  return {entry(2 * pair), entry(2 * pair + 1)};
}

// One warp per list. Counts: out[list] = entries. Else writes them to out + begins[list], ascending.
template <bool kCount>
__global__ void __launch_bounds__(kListWarps* kWarp) walk_lists(Walk w, const std::int32_t* begins, std::int32_t* out) {
  const int list = static_cast<int>(blockIdx.x) * kListWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (list >= w.lists) return;
  const ListSet set = w.sets[list / w.tiles];
  const int tile = list % w.tiles;
  const int first = w.causal && w.owner == Owner::keys ? tile : 0;
  const int end = w.causal && w.owner == Owner::queries ? tile + 1 : w.tiles;
  std::int32_t at = kCount ? 0 : begins[list];
  const unsigned below = (1u << lane) - 1;
  for (int base = first; base < end; base += kWarp) {
    const int2 e = base + lane < end ? entries_of(w, set, tile, base + lane) : int2{0, 0};
    const unsigned a = __ballot_sync(~0u, e.x != 0), b = __ballot_sync(~0u, e.y != 0);
    if (!kCount) {
      const std::int32_t place = at + __popc(a & below) + __popc(b & below);
      if (e.x != 0) out[place] = e.x;
      if (e.y != 0) out[place + (e.x != 0)] = e.y;
    }
    at += __popc(a) + __popc(b);
  }
  if (kCount && lane == 0) out[list] = at;
}

struct Totals {
  std::int64_t entries, work;  // of all sets; of all heads
  std::int32_t items, slots, split_lists;
};

struct Cuts {
  std::int32_t items, slots, split_lists;
  __device__ Cuts operator+(const Cuts& o) const {
    return {items + o.items, slots + o.slots, split_lists + o.split_lists};
  }
};
__device__ Cuts cuts_of(std::int32_t parts) { return {parts, parts > 1 ? parts : 0, parts > 1}; }

struct ListPlan {
  const std::int32_t* set_of;  // by KV head
  const std::int32_t* counts;
  int kv_heads, section;
  int processors;  // 0: no list is cut
  std::int32_t* begins;
  ListItem* items;  // by KV head and tile
  SplitList* splits;
  std::int32_t* section_begins;  // of items
  Totals* totals;
};

// begins; returns the entries of all heads. By one thread block, as is all of the planning.
__device__ std::int64_t plan_entries(const Walk& w, const ListPlan& p, Totals& totals) {
  using Scan = cub::BlockScan<std::int64_t, kPlanThreads>;
  __shared__ typename Scan::TempStorage scratch;
  const int thread = static_cast<int>(threadIdx.x);
  std::int64_t done = 0, mine = 0, work = 0, unused = 0;
  for (int base = 0; base < w.lists; base += kPlanThreads) {
    const int list = base + thread;
    const std::int64_t count = list < w.lists ? p.counts[list] : 0;
    if (list < w.lists) mine += count * w.sets[list / w.tiles].heads;
    std::int64_t before = 0, all = 0;
    Scan(scratch).ExclusiveSum(count, before, all);
    if (list < w.lists) p.begins[list] = static_cast<std::int32_t>(done + before);
    done += all;
    __syncthreads();
  }
  Scan(scratch).ExclusiveSum(mine, unused, work);
  if (thread == 0) {
    p.begins[w.lists] = static_cast<std::int32_t>(done);
    totals.entries = done;
    totals.work = work;
  }
  __syncthreads();  // begins are read by others
  return work;
}

__device__ std::int32_t longest_uncut(const Walk& w, const ListPlan& p, std::int64_t work) {
  if (p.processors == 0) return INT32_MAX;
  const std::int64_t lists = std::int64_t{p.kv_heads} * w.tiles, mean = (work + lists - 1) / lists;
  const std::int64_t share = work * p.section / p.kv_heads / (2 * p.processors);
  const std::int64_t limit = share > kLongest * mean ? share : kLongest * mean;
  return static_cast<std::int32_t>(limit > kShortestCut ? limit : kShortestCut);
}

// The items of one list, whose first one is number at.items.
__device__ void emit(const ListPlan& p, int head, int tile, std::int32_t begin, std::int32_t length, std::int32_t parts,
                     Cuts at) {
  if (tile == 0 && head % p.section == 0) p.section_begins[head / p.section] = at.items;
  if (parts > 1) p.splits[at.split_lists] = {head, tile, at.slots, parts};
  for (std::int64_t i = 0; i < parts; ++i)
    p.items[at.items + i] = {head, tile, begin + static_cast<std::int32_t>(length * i / parts),
                             begin + static_cast<std::int32_t>(length * (i + 1) / parts),
                             parts > 1 ? at.slots + static_cast<std::int32_t>(i) : -1};
}

__global__ void __launch_bounds__(kPlanThreads) plan_items(Walk w, ListPlan p) {
  using Scan = cub::BlockScan<Cuts, kPlanThreads>;
  __shared__ typename Scan::TempStorage scratch;
  const std::int32_t limit = longest_uncut(w, p, plan_entries(w, p, *p.totals));
  const int lists = p.kv_heads * w.tiles;
  Cuts done{};
  for (int base = 0; base < lists; base += kPlanThreads * kPlanEach) {
    std::int32_t begins[kPlanEach], lengths[kPlanEach], parts[kPlanEach];
    Cuts mine{}, at{}, all{};
    const int first = base + static_cast<int>(threadIdx.x) * kPlanEach;
    for (int i = 0; i < kPlanEach; ++i) {
      const int list = first + i;
      parts[i] = 0;
      if (list >= lists) continue;
      const std::int32_t* bounds = p.begins + p.set_of[list / w.tiles] * w.tiles + list % w.tiles;
      begins[i] = bounds[0];
      lengths[i] = bounds[1] - bounds[0];
      parts[i] = (lengths[i] - 1) / limit + 1;
      mine = mine + cuts_of(parts[i]);
    }
    Scan(scratch).ExclusiveScan(
        mine, at, Cuts{}, [](const Cuts& a, const Cuts& b) { return a + b; }, all);
    at = done + at;
    for (int i = 0; i < kPlanEach && first + i < lists; ++i) {
      emit(p, (first + i) / w.tiles, (first + i) % w.tiles, begins[i], lengths[i], parts[i], at);
      at = at + cuts_of(parts[i]);
    }
    done = done + all;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  p.section_begins[(p.kv_heads + p.section - 1) / p.section] = done.items;
  p.totals->items = done.items;
  p.totals->slots = done.slots;
  p.totals->split_lists = done.split_lists;
}

// Each section's items, the longest first and those of one length as they were: an item's place is the number of those
// before it.
__global__ void __launch_bounds__(kOrderThreads)
    order_items(const ListItem* items, const std::int32_t* section_begins, ListItem* ordered) {
  __shared__ std::int32_t lengths[kOrderThreads];
  const int first = section_begins[blockIdx.y], end = section_begins[blockIdx.y + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const auto length = [&](int i) { return i < end ? items[i].end - items[i].begin : -1; };
  for (int base = first + static_cast<int>(blockIdx.x) * kOrderThreads; base < end;
       base += static_cast<int>(gridDim.x) * kOrderThreads) {
    const int item = base + thread;
    const std::int32_t mine = length(item);
    int place = first;
    for (int others = first; others < end; others += kOrderThreads) {
      __syncthreads();
      lengths[thread] = length(others + thread);
      __syncthreads();
#pragma unroll 16
      for (int i = 0; i < kOrderThreads; ++i) place += lengths[i] > mine || (lengths[i] == mine && others + i < item);
    }
    if (item < end) ordered[place] = items[item];
  }
}

// Sets of heads whose lists are the same, and the set of each head. Where they are drawn by head, they differ.
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
        rule.kind == BlockRuleKind::random ? next : of_rule.try_emplace(pattern.rule_of(head), next).first->second;
    if (set == next) s.sets.push_back({rule, head, 0});
    ++s.sets[static_cast<std::size_t>(set)].heads;
    s.of_head.push_back(set);
  }
  return s;
}

template <class T>
Tensor uploaded(const std::vector<T>& values, const Context& ctx) {
  const std::size_t bytes = values.size() * sizeof(T);
  const Tensor t = ctx.empty({static_cast<std::int64_t>(bytes)}, DType::u8);
  if (bytes > 0) ctx.stream.impl().upload(t.raw(), values.data(), bytes);
  return t;
}

// Of the stream's memory, not of the step's: lists outlive the step that happens to build them.
Tensor lasting(const Shape& shape, DType dtype, const Context& ctx) {
  std::shared_ptr<Allocator> allocator = ctx.stream.allocator();
  if (const auto* step = dynamic_cast<const StepArena*>(allocator.get())) allocator = step->upstream();
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  return Tensor::wrap(std::make_shared<Storage>(bytes, ctx.stream.device(), std::move(allocator)), shape, dtype);
}
template <class T>
Tensor lasting_array(std::int64_t count, const Context& ctx) {
  return lasting({count * static_cast<std::int64_t>(sizeof(T))}, DType::u8, ctx);
}
template <class T>
T* array(const Tensor& t) {
  return reinterpret_cast<T*>(t.raw());
}

int processors(const Context& ctx) {
  int count = 0;
  RING_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ctx.stream.device().index));
  return count;
}

// Page-locked memory is dear to make: one per stream.
struct HostTotals {
  explicit HostTotals(StreamImpl& stream) : memory(stream.host_buffer(sizeof(Totals))) {}
  std::shared_ptr<void> memory;
};

// How many entries there are decides how much memory they need.
Totals read_totals(const HostTotals& host, const Event& copied) {
  copied.synchronize();  // host waits: start
  const Totals t = *static_cast<const Totals*>(host.memory.get());
  RING_CHECK(t.entries < std::int64_t{1} << 31, "attention: the lists of a block pattern have ", t.entries,
             " entries, at most 2^31 - 1: a sparser pattern or a shorter context is needed");
  return t;
}

double dense_entries(const Walk& w, std::int64_t kv_heads) {
  const double tiles = w.tiles, halves = w.halves;
  if (!w.causal) return static_cast<double>(kv_heads) * tiles * halves;
  const double of_keys = tiles * halves - tiles * (tiles - 1), of_queries = tiles * (tiles - 1) + halves;
  return static_cast<double>(kv_heads) * (w.owner == Owner::keys ? of_keys : of_queries);
}

// What the kernels read.
struct Input {
  Tensor bits, sets, set_of;
  Walk walk;
};
Input input_of(const BlockPattern& pattern, const ListShape& shape, const Context& ctx) {
  Sets s = sets_of(pattern, shape.kv_heads);
  Input in;
  in.bits = uploaded(pattern.bits(), ctx);
  for (ListSet& set : s.sets)
    if (set.rule.kind == BlockRuleKind::drawn)
      set.rule.bits = array<const std::uint32_t>(in.bits) + set.rule.first_word;
  in.sets = uploaded(s.sets, ctx);
  in.set_of = uploaded(s.of_head, ctx);
  const std::int64_t tiles = divide_up(shape.length, kListRows);
  RING_CHECK(shape.kv_heads * tiles < std::int64_t{1} << 30 && shape.kv_heads <= kMaxGridY,
             "block lists: ", shape.kv_heads, " KV heads of ", tiles, " tiles are too many");
  in.walk = {.sets = array<const ListSet>(in.sets),
             .owner = shape.owner,
             .causal = shape.causal,
             .whole = pattern.block() == kListRows,
             .halves = static_cast<int>(divide_up(shape.length, kListColumns)),
             .tiles = static_cast<int>(tiles),
             .lists = static_cast<int>(tiles) * static_cast<int>(s.sets.size())};
  return in;
}

// All but the entries' values: where each list begins, and the work in its order.
DeviceLists plan_lists(const Input& in, const ListShape& shape, const Tensor& counts, const Tensor& begins,
                       const Context& ctx) {
  const Walk& walk = in.walk;
  const bool cut = shape.owner == Owner::keys;
  // Cutting adds at most one part for two lists, since what is cut is longer than twice the mean.
  const std::int64_t whole = shape.kv_heads * walk.tiles, most_items = whole + (cut ? whole / 2 : 0);
  const std::int64_t section = std::min(shape.section, shape.kv_heads), sections = divide_up(shape.kv_heads, section);
  DeviceLists lists;
  lists.tiles = walk.tiles;
  lists.order = lasting_array<ListItem>(most_items, ctx);
  lists.splits = lasting_array<SplitList>(cut ? whole / 2 : 0, ctx);
  const Tensor items = ctx.empty({most_items * static_cast<std::int64_t>(sizeof(ListItem))}, DType::u8);
  const Tensor section_begins = ctx.empty({sections + 1}, DType::i32), totals = ctx.empty({sizeof(Totals)}, DType::u8);
  const ListPlan plan{.set_of = array<const std::int32_t>(in.set_of),
                      .counts = counts.data<std::int32_t>(),
                      .kv_heads = static_cast<int>(shape.kv_heads),
                      .section = static_cast<int>(section),
                      .processors = cut ? processors(ctx) : 0,
                      .begins = begins.data<std::int32_t>(),
                      .items = array<ListItem>(items),
                      .splits = array<SplitList>(lists.splits),
                      .section_begins = section_begins.data<std::int32_t>(),
                      .totals = array<Totals>(totals)};
  launch(ctx, {grid_of(1), kPlanThreads}, plan_items, walk, plan);
  const auto& host = ctx.stream.impl().resource<HostTotals>();
  ctx.stream.impl().copy(host.memory.get(), totals.raw(), sizeof(Totals));
  const Event copied = ctx.stream.record();
  const std::int64_t blocks = divide_up(std::min(most_items, 2 * section * walk.tiles), kOrderThreads);
  launch(ctx, {grid_of(blocks, sections), kOrderThreads}, order_items, plan.items, plan.section_begins,
         array<ListItem>(lists.order));

  const Totals t = read_totals(host, copied);
  lists.items = t.items;
  lists.slots = t.slots;
  lists.split_lists = t.split_lists;
  lists.density = static_cast<double>(t.work) / dense_entries(walk, shape.kv_heads);
  lists.entries = lasting({t.entries}, DType::i32, ctx);
  return lists;
}

}  // namespace

std::int64_t section_of(std::int64_t kv_heads, std::int64_t length, std::int64_t stream_bytes) {
  const std::int64_t fits = kL2Bytes / std::max<std::int64_t>(1, stream_bytes * length);
  const std::int64_t busy = divide_up(kBusyTiles, std::max<std::int64_t>(1, divide_up(length, kListRows)));
  return std::clamp<std::int64_t>(std::max(fits, busy), 1, std::max<std::int64_t>(1, kv_heads));
}

DeviceLists build_lists(const BlockPattern& pattern, const ListShape& shape, const Context& ctx) {
  RING_CHECK(shape.length > 0 && shape.length <= INT32_MAX && shape.kv_heads > 0 && shape.section > 0,
             "block lists: ", shape.kv_heads, " KV heads, ", shape.length, " positions, sections of ", shape.section);
  pattern.check_covers(shape.length, "attention");
  const Input in = input_of(pattern, shape, ctx);
  const Launch by_list{grid_of(divide_up(in.walk.lists, kListWarps)), kListWarps * kWarp};
  const Tensor counts = ctx.empty({in.walk.lists}, DType::i32), begins = ctx.empty({in.walk.lists + 1}, DType::i32);
  launch(ctx, by_list, walk_lists<true>, in.walk, nullptr, counts.data<std::int32_t>());
  DeviceLists lists = plan_lists(in, shape, counts, begins, ctx);
  launch(ctx, by_list, walk_lists<false>, in.walk, begins.data<std::int32_t>(), lists.entries.data<std::int32_t>());
  return lists;
}

}  // namespace ring::cuda
