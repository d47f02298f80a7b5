// Builds the lists of a selection, separately for each segment pair. The sizes of the lists (list_shape.h) follow from
// the capacity (room) of the selection's rows, so the host knows them before the device has counted anything: nothing
// waits, and the step can be captured. The work is proportional to the number of kept blocks.
#include "kernels/attention/cuda/list_cuts.cuh"
#include "kernels/attention/cuda/list_walk.cuh"
#include "kernels/attention/cuda/lists.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// The rows of a selection that make up query tile `tile` of a segment pair, for one head: one row if blocks have 128
// positions, else two. Of two rows, the first may be before the selection, and the second beyond the document.
struct TileOfQueries {
  const SelectedBlocks& selected;
  int head, per_tile;
  int rows[2];  // -1 if there is no such row

  __device__ TileOfQueries(const SelectedBlocks& s, const SegmentPair& p, const ListWalk& walk, int of_head, int tile)
      : selected(s), head(of_head), per_tile(walk.whole ? 1 : 2) {
    const int first = p.block_row + tile * per_tile;
    rows[0] = max(first, -1);
    rows[1] = per_tile == 2 && 2 * tile + 1 < walk.halves ? first + 1 : -1;
  }
  // Returns the key tile of the n-th kept block of a row; -1 beyond the end of the row's list.
  __device__ int key_tile(int row, int n) const {
    const std::uint32_t block = n < selected.room ? selected.row(row, head)[n] : ~0u;
    return block == ~0u ? -1 : static_cast<int>(block) / per_tile;
  }
  __device__ bool has(int row, int tile) const {
    return key_tile(row, selected.first_from(row, head, tile * per_tile)) == tile;
  }
};

// Enumerates the key tiles that a query tile keeps, in ascending order, by merging the query tile's rows.
struct KeyTiles {
  const TileOfQueries& queries;
  int cursors[2];

  __device__ KeyTiles(const TileOfQueries& q, int first_tile) : queries(q), cursors{} {
    for (int i = 0; i < 2; ++i)
      if (q.rows[i] >= 0) cursors[i] = q.selected.first_from(q.rows[i], q.head, first_tile * q.per_tile);
  }
  // Returns the next tile; -1 at the end.
  __device__ int next() {
    const auto here = [&](int i) { return queries.rows[i] < 0 ? -1 : queries.key_tile(queries.rows[i], cursors[i]); };
    const int a = here(0), b = here(1), tile = a < 0 ? b : b < 0 ? a : min(a, b);
    for (int i = 0; tile >= 0 && i < 2; ++i)
      while (here(i) == tile) ++cursors[i];
    return tile;
  }
};

struct SelectedWalk {
  SelectedBlocks selected;
  const SegmentPair* pieces;
  Stationary owner;
  bool whole;
  int kv_heads, lists, room;  // room: entries allocated per query list
  std::int32_t* entries;
  ListItem* items;

  // Returns the item of a list. Lists are ordered by segment pair, then tile, then head.
  __device__ ListItem item(int list, int begin, int end) const {
    int piece = 0, tile = list / kv_heads;
    TileRange own = list_tiles(pieces[0], owner);
    for (; tile >= own.count(); own = list_tiles(pieces[++piece], owner)) tile -= own.count();
    return {list % kv_heads, own.first + tile, begin, end, -1, piece};
  }
  __device__ ListWalk walk(const SegmentPair& p) const {
    const TileRange columns = list_tiles(p, other(owner));
    return {owner, true, whole, (max(p.q_end, p.k_end) - 1) / kListColumns + 1, columns.end, columns.first};
  }
  // Returns the entries of a tile of the owner (list_shape.h) for a tile of the other side.
  __device__ int2 entries_for(const SegmentPair& p, const ListWalk& walk, int head, int tile, int column) const {
    const auto keeps = [&](int row, int column) {
      return owner == Stationary::q ? selected.keeps(p.block_row + row, head, column)
                                    : selected.keeps(p.block_row + column, head, row);
    };
    return entries_of(walk, keeps, tile, column);
  }
};

// Fills the query lists, one thread per list. Items are in reverse order, since the last tiles have the most columns.
__global__ void __launch_bounds__(kBlock) list_queries(const __grid_constant__ SelectedWalk w) {
  const int list = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
  if (list >= w.lists) return;
  const std::int32_t begin = list * w.room;
  ListItem item = w.item(list, begin, begin);
  const SegmentPair& p = w.pieces[item.piece];
  const ListWalk walk = w.walk(p);
  const TileOfQueries queries(w.selected, p, walk, item.kv_head, item.tile);
  KeyTiles tiles(queries, walk.first);
  for (int tile = tiles.next(); tile >= 0 && tile < walk.tiles; tile = tiles.next()) {
    const int2 e = w.entries_for(p, walk, item.kv_head, item.tile, tile);
    if (e.x != 0 && item.end < begin + w.room) w.entries[item.end++] = e.x;
    if (e.y != 0 && item.end < begin + w.room) w.entries[item.end++] = e.y;
  }
  w.items[w.lists - 1 - list] = item;
}

// The key lists are the transposed query lists. Each chunk of query tiles counts the entries that it
// adds to each key list. Sums over lists and chunks then give each chunk its offset in each list, at
// which it writes its entries in order.
struct Transposed {
  SelectedWalk walk;
  int pieces, chunks;
  std::int32_t* cursors;  // [lists, chunks]: counts, then the next entry

  __device__ std::int32_t& cursor(int list, int chunk) const { return cursors[std::int64_t{list} * chunks + chunk]; }
};

// Adds the entries of one query tile to the key lists. Each lane takes different key tiles. Called by a whole warp.
template <bool kCount>
__device__ void add_tile_of_queries(const Transposed& t, const SegmentPair& p, const ListWalk& walk, TileRange keys,
                                    int first_list, int head, int chunk, int tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const TileOfQueries queries(t.walk.selected, p, walk, head, tile);
  for (int i = 0; i < 2; ++i) {
    const int row = queries.rows[i];
    if (row < 0) continue;
    for (int n = lane; n < t.walk.selected.room; n += kWarp) {
      const int key = queries.key_tile(row, n);
      if (key < 0) break;
      const bool repeated = (n > 0 && queries.key_tile(row, n - 1) == key) ||
                            (i == 1 && queries.rows[0] >= 0 && queries.has(queries.rows[0], key));
      if (repeated || key < keys.first || key >= keys.end) continue;
      const int2 e = t.walk.entries_for(p, walk, head, key, tile);
      std::int32_t& cursor = t.cursor(first_list + (key - keys.first) * t.walk.kv_heads, chunk);
      const std::int32_t at = cursor, second = at + (e.x != 0);
      if (!kCount && e.x != 0) t.walk.entries[at] = e.x;
      if (!kCount && e.y != 0) t.walk.entries[second] = e.y;
      cursor = second + (e.y != 0);
    }
  }
}

// One warp per segment pair, head and chunk of query tiles. The warp processes the tiles of its chunk in order.
template <bool kCount>
__global__ void __launch_bounds__(kListWarps* kWarp) list_keys(const __grid_constant__ Transposed t) {
  const int at = static_cast<int>(blockIdx.x) * kListWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int chunk = at % t.chunks, head = at / t.chunks % t.walk.kv_heads, piece = at / t.chunks / t.walk.kv_heads;
  if (piece >= t.pieces) return;
  int before = 0;  // key tiles of earlier segment pairs
  for (int i = 0; i < piece; ++i) before += list_tiles(t.walk.pieces[i], Stationary::kv).count();
  const SegmentPair& p = t.walk.pieces[piece];
  const ListWalk walk = t.walk.walk(p);
  const TileRange keys = list_tiles(p, Stationary::kv), queries = list_tiles(p, Stationary::q);
  const int first_list = before * t.walk.kv_heads + head;
  for (int n = static_cast<int>(threadIdx.x) % kWarp; kCount && n < keys.count(); n += kWarp)
    t.cursor(first_list + n * t.walk.kv_heads, chunk) = 0;
  const int each = (queries.count() + t.chunks - 1) / t.chunks, first = queries.first + chunk * each;
  for (int tile = first; tile < min(queries.end, first + each); ++tile) {
    __syncwarp();  // the cursors of the previous tile are written
    add_tile_of_queries<kCount>(t, p, walk, keys, first_list, head, chunk, tile);
  }
}

struct SelectedCuts {
  SplitList* splits;
  int items, split_lists, processors;  // items, split_lists: capacities; processors: number of SMs
};

// Turns the counts of the key lists into offsets. Orders the items: first the parts of split lists, then the others.
__global__ void __launch_bounds__(kPlanThreads) cut_selected(const __grid_constant__ Transposed t, SelectedCuts to) {
  const SelectedWalk& w = t.walk;
  const int counters = w.lists * t.chunks;
  const std::int64_t work = sums_before<std::int64_t>(
      counters, [&](int i) { return std::int64_t{t.cursors[i]}; },
      [&](int i, std::int64_t before) { t.cursors[i] = static_cast<std::int32_t>(before); });
  __syncthreads();
  const auto begin = [&](int list) { return list < w.lists ? t.cursor(list, 0) : static_cast<std::int32_t>(work); };
  const std::int32_t longest = longest_uncut(work, w.lists, work, to.processors);
  const auto parts = [&](int list) { return parts_of(begin(list + 1) - begin(list), longest); };
  const auto cuts = [&](int list) { return cuts_of(parts(list)); };
  const Cuts all = sums_before<Cuts>(w.lists, cuts, [](int, const Cuts&) {});
  __syncthreads();
  const int uncut = to.items - (w.lists - all.split_lists);
  sums_before<Cuts>(w.lists, cuts, [&](int list, const Cuts& before) {
    const ListItem item = w.item(list, begin(list), begin(list + 1));
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

void fill_lists_of_keys(const SelectedWalk& walk, const SelectedShape& shape, const DeviceLists& made,
                        const ExecContext& ctx) {
  const Tensor cursors = ctx.empty({shape.counters()}, DType::i32);
  const Transposed t{walk, static_cast<int>(shape.pieces), static_cast<int>(shape.chunks()),
                     cursors.data<std::int32_t>()};
  const Launch by_chunk{grid_of(divide_up(shape.pieces * shape.kv_heads * shape.chunks(), kListWarps)),
                        kListWarps * kWarp};
  launch(ctx, by_chunk, list_keys<true>, t);
  const SelectedCuts to{reinterpret_cast<SplitList*>(made.splits.raw()), made.items, made.split_lists, processors(ctx)};
  launch(ctx, {grid_of(1), kPlanThreads}, cut_selected, t, to);
  launch(ctx, by_chunk, list_keys<false>, t);
}

}  // namespace

DeviceLists selected_lists(const BlockSelection& selection, const SegmentPair* pieces, const SelectedShape& shape,
                           const ExecContext& ctx) {
  if (std::max(shape.entries(), shape.counters()) > kMaxListEntries)
    fail("attention: the lists of a selection of ", shape.query_tiles, " tiles of 128 queries and ", shape.kv_heads,
         " KV heads need room for ", shape.entries(),
         " entries, but at most 2^30 - 1 are supported. Shorten the context, lower keep, or lower train.micro_batch");
  DeviceLists made;
  made.items = static_cast<std::int32_t>(shape.items());
  made.split_lists = static_cast<std::int32_t>(shape.split_lists());
  made.slots = static_cast<std::int32_t>(shape.cuts() ? shape.lists() : 0);
  made.entries = ctx.empty({shape.entries()}, DType::i32);
  made.order = array_of<ListItem>(made.items, ctx);
  if (shape.cuts()) made.splits = array_of<SplitList>(made.split_lists, ctx);
  const SelectedWalk walk{.selected = SelectedBlocks(selection),
                          .pieces = pieces,
                          .owner = shape.owner,
                          .whole = shape.block == kListRows,
                          .kv_heads = static_cast<int>(shape.kv_heads),
                          .lists = static_cast<int>(shape.lists()),
                          .room = static_cast<int>(shape.room()),
                          .entries = made.entries.data<std::int32_t>(),
                          .items = reinterpret_cast<ListItem*>(made.order.raw())};
  if (shape.cuts())
    fill_lists_of_keys(walk, shape, made, ctx);
  else
    launch(ctx, {grid_of(divide_up(shape.lists(), kBlock))}, list_queries, walk);
  return made;
}

}  // namespace ring::cuda
