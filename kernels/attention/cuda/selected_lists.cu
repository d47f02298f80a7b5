// Builds the lists of a selection, separate ones for each segment pair. Each list is allocated for the worst case, so
// the host knows every offset before the device has counted anything: nothing waits, and the step can be captured.
#include "kernels/attention/cuda/list_cuts.cuh"
#include "kernels/attention/cuda/list_walk.cuh"
#include "kernels/attention/cuda/lists.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

struct SelectedWalk {
  SelectedBlocks selected;
  const SegmentPair* pieces;
  Stationary owner;
  bool whole;
  int kv_heads, lists, room;  // room: entries allocated per list
  std::int32_t* entries;
  std::int32_t* counts;  // entries of each list; null if the items are written directly
  ListItem* items;

  // Returns the item of a list. Lists are ordered by segment pair, then tile, then head.
  __device__ ListItem item(int list, int count) const {
    int piece = 0, tile = list / kv_heads;
    TileRange own = list_tiles(pieces[0], owner);
    for (; tile >= own.count(); own = list_tiles(pieces[++piece], owner)) tile -= own.count();
    return {list % kv_heads, own.first + tile, list * room, list * room + count, -1, piece};
  }
};

// Fills the lists, one warp per list. For queries, items are in reverse order: the last tiles have the most columns.
__global__ void __launch_bounds__(kListWarps* kWarp) walk_selected(const __grid_constant__ SelectedWalk w) {
  const int list = static_cast<int>(blockIdx.x) * kListWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (list >= w.lists) return;
  ListItem item = w.item(list, 0);
  const SegmentPair& p = w.pieces[item.piece];
  const TileRange columns = list_tiles(p, other(w.owner));
  const ListWalk walk{w.owner,     true,         w.whole, (max(p.q_end, p.k_end) - 1) / kListColumns + 1,
                      columns.end, columns.first};
  const auto keeps = [&](int row, int column) {
    return w.owner == Stationary::q ? w.selected.keeps(p.block_row + row, item.kv_head, column)
                                    : w.selected.keeps(p.block_row + column, item.kv_head, row);
  };
  const int count = walk_list(walk, keeps, item.tile, w.entries + item.begin, lane);
  item.end = item.begin + count;
  if (lane != 0) return;
  if (w.counts)
    w.counts[list] = count;
  else
    w.items[w.lists - 1 - list] = item;
}

struct SelectedCuts {
  SplitList* splits;
  int items, split_lists, processors;  // items, split_lists: capacities; processors: number of SMs
};

// Orders the lists of keys: first the parts of split lists, then the others.
__global__ void __launch_bounds__(kPlanThreads) cut_selected(const __grid_constant__ SelectedWalk w, SelectedCuts to) {
  std::int64_t work = 0;
  for (int list = static_cast<int>(threadIdx.x); list < w.lists; list += kPlanThreads) work += w.counts[list];
  work = group_sum<kPlanThreads>(work);
  const std::int32_t longest = longest_uncut(work, w.lists, work, to.processors);
  const auto parts = [&](int list) { return parts_of(w.counts[list], longest); };
  const auto cuts = [&](int list) { return cuts_of(parts(list)); };
  const Cuts all = sums_before<Cuts>(w.lists, cuts, [](int, const Cuts&) {});
  __syncthreads();
  const int uncut = to.items - (w.lists - all.split_lists);
  sums_before<Cuts>(w.lists, cuts, [&](int list, const Cuts& before) {
    const ListItem item = w.item(list, w.counts[list]);
    const Parts p = parts(list);
    if (p.count == 1) {
      w.items[uncut + list - before.split_lists] = item;
      return;
    }
    to.splits[before.split_lists] = {item.kv_head, item.tile, before.slots, p.count, item.piece};
    std::int32_t from = item.begin;
    for (int i = 0; i < p.count; ++i) {
      const std::int32_t end = from + p.shorter + (i < p.longer);
      w.items[before.slots + i] = {item.kv_head, item.tile, from, end, before.slots + i, item.piece};
      from = end;
    }
  });
  const std::int32_t beyond = list_tiles(w.pieces[0], w.owner).end;
  for (int i = all.slots + static_cast<int>(threadIdx.x); i < uncut; i += kPlanThreads)
    w.items[i] = {0, beyond, 0, 0, -1, 0};
  for (int i = all.split_lists + static_cast<int>(threadIdx.x); i < to.split_lists; i += kPlanThreads)
    to.splits[i] = {0, 0, 0, 0, 0};
}

template <class T>
Tensor array_of(std::int64_t count, const ExecContext& ctx) {
  return ctx.empty({count * static_cast<std::int64_t>(sizeof(T))}, DType::u8);
}

}  // namespace

DeviceLists selected_lists(const BlockSelection& selection, const SegmentPair* pieces, const SelectedShape& shape,
                           const ExecContext& ctx) {
  const std::int64_t lists = shape.tiles * shape.kv_heads, room = std::max<std::int64_t>(1, 2 * shape.max_columns);
  if (lists * room > kMaxListEntries)
    fail("attention: the lists of a selection of ", shape.tiles, " tiles of 128 queries and ", shape.kv_heads,
         " KV heads need room for ", lists * room,
         " entries, but at most 2^30 - 1 are supported. Shorten the context or lower train.micro_batch");
  const bool cuts = shape.owner == Stationary::kv;
  DeviceLists made;
  made.items = static_cast<std::int32_t>(cuts ? lists + lists / 2 : lists);
  made.split_lists = static_cast<std::int32_t>(cuts ? lists / 2 : 0);
  made.slots = static_cast<std::int32_t>(cuts ? lists : 0);
  made.entries = ctx.empty({lists * room}, DType::i32);
  made.order = array_of<ListItem>(made.items, ctx);
  if (cuts) made.splits = array_of<SplitList>(made.split_lists, ctx);
  const Tensor counts = cuts ? ctx.empty({lists}, DType::i32) : Tensor{};
  const SelectedWalk walk{.selected = SelectedBlocks(selection),
                          .pieces = pieces,
                          .owner = shape.owner,
                          .whole = shape.block == kListRows,
                          .kv_heads = static_cast<int>(shape.kv_heads),
                          .lists = static_cast<int>(lists),
                          .room = static_cast<int>(room),
                          .entries = made.entries.data<std::int32_t>(),
                          .counts = cuts ? counts.data<std::int32_t>() : nullptr,
                          .items = reinterpret_cast<ListItem*>(made.order.raw())};
  launch(ctx, {grid_of(divide_up(lists, kListWarps)), kListWarps * kWarp}, walk_selected, walk);
  if (!cuts) return made;
  const SelectedCuts to{reinterpret_cast<SplitList*>(made.splits.raw()), made.items, made.split_lists, processors(ctx)};
  launch(ctx, {grid_of(1), kPlanThreads}, cut_selected, walk, to);
  return made;
}

}  // namespace ring::cuda
