#pragma once
// Block lists of a pattern in device memory, and the order in which kernels process them. The lists depend only on the
// pattern, the number of KV heads and the length of the packed row. All rows of a batch, all query heads of a KV head,
// and forward and backward therefore share the lists. Construction is deterministic.

#include <map>

#include "kernels/attention/list_shape.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring::cuda {

// Maximum entries of all lists of a call. Kernels address entries with 32 bits, some of them half an entry at a time.
inline constexpr std::int64_t kMaxListEntries = (std::int64_t{1} << 30) - 1;

// Block lists of all heads. Lists of queries (used for the forward and dq) are never split. The longest lists of keys
// (used for dk and dv) are split. No list is empty, because the diagonal is always kept.
struct DeviceLists {
  Tensor entries;  // [entries] i32; heads with the same rule may share entries
  Tensor order;    // ListItem [items] as bytes: longest first, one section of KV heads after another
  Tensor splits;   // SplitList [split_lists] as bytes, by KV head and tile
  std::int32_t items = 0, split_lists = 0, slots = 0;
  std::int32_t tiles = 0;  // number of tiles per head
  double density = 0;      // number of entries, relative to dense attention

  const std::int32_t* entry_data() const { return entries.data<std::int32_t>(); }
  const ListItem* item_data() const { return reinterpret_cast<const ListItem*>(order.raw()); }
  const SplitList* split_data() const { return reinterpret_cast<const SplitList*>(splits.raw()); }
  std::size_t bytes() const { return entries.bytes() + order.bytes() + splits.bytes(); }
};

// Everything that lists depend on, except the pattern. `section`: number of KV heads that run at the same time, so that
// their streamed rows share the L2 cache (see kv_heads_per_section()).
struct ListShape {
  Stationary owner = Stationary::q;
  std::int64_t kv_heads = 1, length = 0;  // length: positions of the packed row
  bool causal = true;
  std::int64_t section = 1;
  auto operator<=>(const ListShape&) const = default;
};
// Returns the KV heads per section. stream_bytes: bytes per position and KV head that a thread block streams (k and v
// in bf16: 4 D).
std::int64_t kv_heads_per_section(std::int64_t kv_heads, std::int64_t length, std::int64_t stream_bytes);

// Returns lists from the stream's cache. Builds them at first use; the host then waits for the device once. Work that
// reads the lists need not hold a reference to them if it is queued before the next call. Throws Error if the pattern
// has no blocks or fewer than `length` needs, or if lists would have to be built during CUDA graph capture.
DeviceLists lists_for(const Pattern&, Stationary, std::int64_t kv_heads, std::int64_t length, std::int64_t stream_bytes,
                      const ExecContext&);
DeviceLists build_lists(const BlockPattern&, const ListShape&, const ExecContext&);  // bypasses the cache

// Builds the lists of a selection. `pieces` must be in device memory, and each must have queries. Work that reads the
// lists must be queued on the same stream. Throws Error if the lists are too large.
DeviceLists selected_lists(const BlockSelection&, const SegmentPair* pieces, const SelectedShape&, const ExecContext&);

// Adds the partial sums of split lists, in the order of the parts. For each segment pair, each split list, and each row
// r < 128 of the list's tile for which p = 128 tile + r is a key of the segment pair:
//   out[k_row + p, kv_head] = factor * (sum over parts of partial[segment pair, slot, r]) + carry[..]
// If the tile has keys of the segment pair, parts without any pair must have written zeros.
struct SplitSums {
  Tensor partial;  // f32 [segment pairs (1 if each item names its own), slots, 128, width], width >= D
  Tensor out;      // [N,Hk,D], f32 or bf16, any strides, unit last stride
  Tensor carry;    // f32 [N,Hk,D] or undefined; may be `out` itself
  float factor = 1;
};
// `pieces` must be in device memory.
void add_splits(const DeviceLists&, const SegmentPair* pieces, const SplitSums&, const ExecContext&);

// LRU cache of lists per stream, limited to `limit` bytes. Lists that were returned during CUDA graph capture are never
// evicted, since the graph may be replayed at any time.
class ListCache {
 public:
  explicit ListCache(StreamImpl&) {}
  DeviceLists find(const BlockPattern&, const ListShape&, const ExecContext&);
  std::size_t bytes() const { return bytes_; }
  std::size_t lists() const { return entries_.size(); }
  // Evicts lists that exceed the new limit.
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
