#pragma once
// Sizes of the block lists that GPUs build from a selection. The host knows all sizes before the device has counted
// anything, so memory can be planned on any machine. The owner of the lists is the side, queries or keys, each of whose
// tiles has a list. The entries of a list stand for tiles of the other side.

#include <algorithm>
#include <cstdint>

#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"

namespace ring::cuda {

// A work item: one thread block's share of an owner tile, whose rows start at 128 * tile. The share is the entries
// [begin, end) of the tile's list, which are in ascending order.
struct ListItem {
  std::int32_t kv_head, tile;
  std::int32_t begin, end;
  std::int32_t part;       // slot for the partial sums of this share; -1 if the list is not split
  std::int32_t piece = 0;  // index of the segment pair, if each segment pair has its own lists
};
// A list that was split: its parts, in the order of their entries, use `parts` slots from first_slot on.
struct SplitList {
  std::int32_t kv_head, tile;
  std::int32_t first_slot, parts;  // parts is 0 if the entry is unused
  std::int32_t piece = 0;          // index of the segment pair, as in ListItem
};

// The tiles of 128 positions that hold the queries, or the keys, of a segment pair.
struct TileRange {
  std::int32_t first, end;
  RING_HOST_DEVICE std::int32_t count() const { return end - first; }
};
RING_HOST_DEVICE inline TileRange list_tiles(const SegmentPair& p, Stationary side) {
  const bool q = side == Stationary::q;
  return {(q ? p.q_first : p.k_first) / kListRows, ((q ? p.q_end : p.k_end) + kListRows - 1) / kListRows};
}

// Shape of a selection's lists, which are in step memory. Each segment pair has its own lists: one per owner tile and
// KV head.
//   - Query lists all have the same capacity, room(): a query tile has one or two rows of the selection, and a kept
//     block has up to two entries.
//   - Key lists are stored one after another. In total, they have as many entries as query lists may have, since both
//     list the same pairs of tiles.
// Items and splits are allocated for the worst case; unused ones have no rows and no parts.
struct SelectedShape {
  Stationary owner = Stationary::q;
  std::int32_t block = kListRows;
  std::int64_t kv_heads = 1;
  std::int64_t kept = 1;  // capacity of the selection's lists: maximum number of key blocks per query block
  // Over all segment pairs: their number, sums of owner tiles and query tiles, maxima of query tiles and key tiles.
  std::int64_t pieces = 0, tiles = 0, query_tiles = 0, max_query_tiles = 0, max_key_tiles = 0;

  void add(const SegmentPair& p) {
    const std::int64_t queries = list_tiles(p, Stationary::q).count(), keys = list_tiles(p, Stationary::kv).count();
    ++pieces, tiles += owner == Stationary::q ? queries : keys, query_tiles += queries;
    max_query_tiles = std::max(max_query_tiles, queries), max_key_tiles = std::max(max_key_tiles, keys);
  }
  bool cuts() const { return owner == Stationary::kv; }  // true if long lists are split
  std::int64_t lists() const { return tiles * kv_heads; }
  std::int64_t room() const {  // capacity of a query list, in entries
    return std::max<std::int64_t>(1, 2 * std::min(kept * (kListRows / block), max_key_tiles));
  }
  std::int64_t entries() const { return query_tiles * kv_heads * room(); }
  std::int64_t items() const { return cuts() ? lists() + lists() / 2 : lists(); }
  std::int64_t split_lists() const { return cuts() ? lists() / 2 : 0; }
  // Chunks of query tiles fill the key lists in parallel. Each chunk has a counter per list.
  std::int64_t chunks() const { return std::clamp<std::int64_t>(max_query_tiles / kChunkTiles, 1, kMaxChunks); }
  std::int64_t counters() const { return cuts() ? lists() * chunks() : 0; }
  std::int64_t bytes() const {
    return (entries() + counters()) * std::int64_t{sizeof(std::int32_t)} + items() * std::int64_t{sizeof(ListItem)} +
           split_lists() * std::int64_t{sizeof(SplitList)};
  }

 private:
  static constexpr std::int64_t kChunkTiles = 8, kMaxChunks = 16;
};

}  // namespace ring::cuda
