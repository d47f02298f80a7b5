#pragma once
// The lists of a block pattern in device memory, and the order in which kernels work them off. They depend on the
// pattern, the KV heads and the length of the packed row alone: all rows of a batch, all query heads of a KV head, the
// forward and the backward share them. Everything comes out the same from run to run.

#include <algorithm>
#include <map>

#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring::cuda {

// A thread block's share of the work on one tile of the owner (rows 128 tile on): its entries [begin, end), ascending.
struct ListItem {
  std::int32_t kv_head, tile;
  std::int32_t begin, end;
  std::int32_t part;       // -1: all that the tile has; else the slot that this share's sums go to
  std::int32_t piece = 0;  // the segment pair that it is for, where each has lists of its own
};
// A list that was cut: its parts, in the order of their entries, have the slots first_slot on.
struct SplitList {
  std::int32_t kv_head, tile;
  std::int32_t first_slot, parts;  // no parts: there is no such list
  std::int32_t piece = 0;          // as in ListItem
};

// Lists of queries (for the forward and dq) are never cut; of keys (for dk and dv) the longest are. None is empty: the
// diagonal is always kept.
struct DeviceLists {
  Tensor entries;  // [entries] i32; heads of one rule may share theirs
  Tensor order;    // bytes of ListItem [items]: the longest first, one section of KV heads after the other
  Tensor splits;   // bytes of SplitList [split_lists], by KV head and tile
  std::int32_t items = 0, split_lists = 0, slots = 0;
  std::int32_t tiles = 0;  // of each head
  double density = 0;      // entries, as a share of those of dense attention

  const std::int32_t* entry_data() const { return entries.data<std::int32_t>(); }
  const ListItem* item_data() const { return reinterpret_cast<const ListItem*>(order.raw()); }
  const SplitList* split_data() const { return reinterpret_cast<const SplitList*>(splits.raw()); }
  std::size_t bytes() const { return entries.bytes() + order.bytes() + splits.bytes(); }
};

// What lists are for. `section`: KV heads whose streamed rows share the L2 cache, see section_of.
struct ListShape {
  Stationary owner = Stationary::q;
  std::int64_t kv_heads = 1, length = 0;  // positions of the packed row
  bool causal = true;
  std::int64_t section = 1;
  auto operator<=>(const ListShape&) const = default;
};
// stream_bytes: of one position's rows of one KV head that a thread block streams (k and v in bf16: 4 D).
std::int64_t section_of(std::int64_t kv_heads, std::int64_t length, std::int64_t stream_bytes);

// From the stream's cache, built at the first use (there the host waits for the device once, which a recording of work
// does not allow). Work that reads them and is queued before the next call of this needs not hold them. Error: the
// pattern has no blocks, or fewer than the length asks for.
DeviceLists lists_for(const Pattern&, Stationary, std::int64_t kv_heads, std::int64_t length, std::int64_t stream_bytes,
                      const ExecContext&);
DeviceLists build_lists(const BlockPattern&, const ListShape&, const ExecContext&);  // without the cache

// Blocks of 128 positions in which a segment pair has rows of this side.
struct TileRange {
  std::int32_t first, end;
  RING_HOST_DEVICE std::int32_t count() const { return end - first; }
};
RING_HOST_DEVICE inline TileRange list_tiles(const SegmentPair& p, Stationary side) {
  const bool q = side == Stationary::q;
  return {(q ? p.q_first : p.k_first) / kListRows, ((q ? p.q_end : p.k_end) + kListRows - 1) / kListRows};
}

// The lists of a selection, in step memory. Each segment pair has its own. Items and splits have room for all that
// there may be: those that are left over have no rows and no parts.
struct SelectedShape {
  Stationary owner = Stationary::q;
  std::int32_t block = kListRows;
  std::int64_t kv_heads = 1;
  std::int64_t tiles = 0, most_columns = 0;  // of the owner, of all segment pairs; of the other side, of the largest
  void add(const SegmentPair& p) {
    tiles += list_tiles(p, owner).count();
    most_columns = std::max<std::int64_t>(most_columns, list_tiles(p, other(owner)).count());
  }
};
// segment pairs: in device memory, with queries each. Work that reads the lists is queued on the same stream. Error:
// they are too large.
DeviceLists selected_lists(const BlockSelection&, const SegmentPair* pieces, const SelectedShape&, const ExecContext&);

// The sums of the parts of split lists, in the order of the parts: for each segment pair and split list, row r < 128 of
// the tile that is a key of the segment pair,
//   out[k_row + p, kv_head] = factor * (sum over parts of partial[segment pair, slot, r]) + carry[..],   p = 128 tile +
//   r
// Parts that saw nothing must have written zeros, where the tile has keys of the segment pair at all.
struct SplitSums {
  Tensor partial;  // f32 [segment pairs, or 1 where lists name theirs; slots, 128, width], width >= D
  Tensor out;      // [N,Hk,D], f32 or bf16, any strides with unit last
  Tensor carry;    // f32 [N,Hk,D] or undefined; it may be `out` itself
  float factor = 1;
};
// segment pairs: in device memory.
void add_splits(const DeviceLists&, const SegmentPair* pieces, const SplitSums&, const ExecContext&);

// The lists of one stream, no more than `limit` bytes of them: the least recently used go first. What was handed out
// while work was recorded stays, since the recording may be replayed at any time.
class ListCache {
 public:
  explicit ListCache(StreamImpl&) {}
  DeviceLists find(const BlockPattern&, const ListShape&, const ExecContext&);
  std::size_t bytes() const { return bytes_; }
  std::size_t lists() const { return entries_.size(); }
  void set_limit(std::size_t bytes);

 private:
  struct Key {
    std::uint64_t version, generation;
    ListShape shape;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    DeviceLists lists;
    std::uint64_t last_use = 0;
    bool pinned = false;
  };
  void make_room(std::size_t bytes);

  std::map<Key, Entry> entries_;
  std::size_t bytes_ = 0, limit_ = std::size_t{256} << 20;
  std::uint64_t uses_ = 0;
};

}  // namespace ring::cuda
