// The lists of a selection, for every segment pair those of its own. Each list has room for all that it might hold, so
// the host knows every place before the device knows a number: nothing waits, and a step with them can be recorded.
#include "kernels/attention/cuda/list_walk.cuh"
#include "kernels/attention/cuda/lists.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr int kListWarps = 4;

struct SelectedWalk {
  SelectedBlocks selected;
  const SegmentPair* pieces;
  Stationary owner;
  bool whole;
  int kv_heads, lists, room;  // room: entries of a list
  std::int32_t* entries;
  ListItem* items;
};

// One warp per list: lists of neighbouring heads, tile by tile, one segment pair after the other. Items have the
// reverse order for queries, whose last tiles see most.
__global__ void __launch_bounds__(kListWarps* kWarp) walk_selected(const __grid_constant__ SelectedWalk w) {
  const int list = static_cast<int>(blockIdx.x) * kListWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (list >= w.lists) return;
  const int head = list % w.kv_heads;
  int piece = 0, tile = list / w.kv_heads;
  for (int tiles = list_tiles(w.pieces[0]); tile >= tiles; tiles = list_tiles(w.pieces[++piece])) tile -= tiles;
  const SegmentPair& p = w.pieces[piece];
  const ListWalk walk{w.owner, true, w.whole, (p.q_end - 1) / kListColumns + 1, list_tiles(p)};
  const auto keeps = [&](int row, int column) {
    return w.owner == Stationary::q ? w.selected.keeps(p.block_row + row, head, column)
                                    : w.selected.keeps(p.block_row + column, head, row);
  };
  const std::int32_t begin = list * w.room;
  const int count = walk_list(walk, keeps, tile, w.entries + begin, lane);
  const int place = w.owner == Stationary::q ? w.lists - 1 - list : list;
  if (lane == 0) w.items[place] = {head, tile, begin, begin + count, -1, piece};
}

}  // namespace

DeviceLists selected_lists(const BlockSelection& selection, const SegmentPair* pieces, const SelectedShape& shape,
                           const ExecContext& ctx) {
  const std::int64_t lists = shape.tiles * shape.kv_heads, room = 2 * shape.most_tiles;
  if (lists * room >= std::int64_t{1} << 31)
    fail("attention: the lists of a selection of ", shape.tiles, " tiles of 128 queries and ", shape.kv_heads,
         " KV heads need room for ", lists * room,
         " entries, at most 2^31 - 1: shorten the context or lower "
         "train.micro_batch");
  DeviceLists made;
  made.entries = ctx.empty({lists * room}, DType::i32);
  made.order = ctx.empty({lists * static_cast<std::int64_t>(sizeof(ListItem))}, DType::u8);
  made.items = static_cast<std::int32_t>(lists);
  made.tiles = static_cast<std::int32_t>(shape.most_tiles);
  const SelectedWalk walk{.selected = SelectedBlocks(selection),
                          .pieces = pieces,
                          .owner = shape.owner,
                          .whole = shape.block == kListRows,
                          .kv_heads = static_cast<int>(shape.kv_heads),
                          .lists = static_cast<int>(lists),
                          .room = static_cast<int>(room),
                          .entries = made.entries.data<std::int32_t>(),
                          .items = reinterpret_cast<ListItem*>(made.order.raw())};
  launch(ctx, {grid_of(divide_up(lists, kListWarps)), kListWarps * kWarp}, walk_selected, walk);
  return made;
}

}  // namespace ring::cuda
