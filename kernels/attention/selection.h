#pragma once
// Selection: the key blocks that each query block keeps, as lists on the device. Patterns with content rules need a
// selection for each call, which selected/block_select.h makes. It then replaces the rules of all heads, content or
// not.

#include <vector>

#include "core/host_device.h"
#include "core/tensor.h"
#include "kernels/attention/pattern.h"
#include "kernels/kernel.h"

namespace ring {

constexpr std::int32_t kNoBlock = -1;  // pads lists; as an unsigned number it is larger than every block

struct BlockSelection {
  // i32 [rows, Hk, room]: lists of capacity `room` with the kept key blocks in ascending order, followed by kNoBlock.
  // Row rows[b] + i is for query block i of span b. Blocks are counted from the block in which the document starts.
  // Every query block keeps its own block and no later one. Undefined if there is no selection.
  Tensor kept;
  // For each span, the row in `kept` of block 0 of its document. It is negative if `kept` starts at a later block,
  // because rows of blocks without queries of the call may be missing. If empty, the spans must be whole documents
  // (first_blocks()).
  std::vector<std::int32_t> rows{};
};

// Returns the number of blocks from the start of the span's document to the end of the span.
std::int32_t blocks_of(const Pattern&, const Span&);
// For spans that are whole documents, returns the number of blocks before each span, followed by the
// number of blocks in all spans.
std::vector<std::int32_t> first_blocks(const Pattern&, const std::vector<Span>&);

std::int32_t max_blocks(const Pattern&, const std::vector<Span>&);  // largest blocks_of() of all spans

// Returns the capacity (`room`) that a selection's lists need: the maximum number of key blocks that a query block of a
// document with `blocks` blocks keeps, over all heads. At least 1.
std::int64_t max_kept_blocks(const BlockPattern&, std::int64_t kv_heads, std::int32_t blocks);
std::int64_t max_kept_blocks(const Pattern&, std::int64_t kv_heads, const std::vector<Span>&);  // for the longest span

// A selection as kernels read it.
struct SelectedBlocks {
  const std::uint32_t* kept = nullptr;  // null if there is no selection
  std::int32_t heads = 0, room = 0;

  SelectedBlocks() = default;
  explicit SelectedBlocks(const BlockSelection& s) {
    if (!s.kept.defined()) return;
    kept = reinterpret_cast<const std::uint32_t*>(s.kept.raw());
    heads = static_cast<std::int32_t>(s.kept.dim(1)), room = static_cast<std::int32_t>(s.kept.dim(2));
  }
  RING_HOST_DEVICE std::int64_t offset(std::int32_t row, std::int32_t head) const {
    return (std::int64_t{row} * heads + head) * room;
  }
  RING_HOST_DEVICE const std::uint32_t* row(std::int32_t row, std::int32_t head) const {
    return kept + offset(row, head);
  }
  // Returns the index in a row's list of the first block >= k; `room` if there is none.
  RING_HOST_DEVICE std::int32_t first_from(std::int32_t of_row, std::int32_t head, std::int32_t k) const {
    const std::uint32_t* const list = row(of_row, head);
    std::int32_t begin = 0, end = room;
    while (begin < end) {
      const std::int32_t middle = (begin + end) / 2;
      if (list[middle] < static_cast<std::uint32_t>(k))
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }
  // Returns the position of key block k in a row's list, or -1 if the block is not kept.
  RING_HOST_DEVICE std::int32_t find(std::int32_t of_row, std::int32_t head, std::int32_t k) const {
    const std::int32_t n = first_from(of_row, head, k);
    return n < room && row(of_row, head)[n] == static_cast<std::uint32_t>(k) ? n : -1;
  }
  // Returns true if the selection's row `of_row` keeps key block k; false if of_row is negative.
  RING_HOST_DEVICE bool keeps(std::int32_t of_row, std::int32_t head, std::int32_t k) const {
    return of_row >= 0 && find(of_row, head, k) >= 0;
  }
};

// Throws Error, naming `op`, if the pattern selects but there is no selection for these spans, or if there is a
// selection but the pattern does not select.
void check(const BlockSelection&, const Pattern&, const std::vector<Span>& queries, const std::vector<Span>& keys,
           std::int64_t kv_heads, const char* op);

}  // namespace ring
