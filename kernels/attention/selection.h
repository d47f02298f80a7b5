#pragma once
// Selection: a bit matrix on the device that says which key blocks each query block keeps. Patterns with content rules
// need one for each call; selected/block_select.h makes it. It then replaces the rules of all heads, content or not.

#include <vector>

#include "core/host_device.h"
#include "core/tensor.h"
#include "kernels/attention/pattern.h"
#include "kernels/kernel.h"

namespace ring {

struct BlockSelection {
  // i32 [rows, Hk, words]: key block k is bit k % 32 of word k / 32. Row rows[b] + i is for query block i of span b.
  // Blocks are counted from the block in which the document starts. Every query block keeps its own block and no later
  // one. Undefined if there is no selection.
  Tensor bits;
  // The row of block 0 of each span's document; negative if `bits` starts at a later block, because rows of blocks
  // without queries of the call may be missing. If empty, the spans must be whole documents (first_blocks()).
  std::vector<std::int32_t> rows{};
};

// Returns the blocks from the start of the span's document to the end of the span.
std::int32_t blocks_of(const Pattern&, const Span&);
// For spans that are whole documents, returns the number of blocks before each span, followed by the number in all
// spans.
std::vector<std::int32_t> first_blocks(const Pattern&, const std::vector<Span>&);

// A selection as kernels read it.
struct SelectedBlocks {
  const std::uint32_t* bits = nullptr;  // null if there is no selection
  std::int32_t heads = 0, words = 0;

  SelectedBlocks() = default;
  explicit SelectedBlocks(const BlockSelection& s) {
    if (!s.bits.defined()) return;
    bits = reinterpret_cast<const std::uint32_t*>(s.bits.raw());
    heads = static_cast<std::int32_t>(s.bits.dim(1)), words = static_cast<std::int32_t>(s.bits.dim(2));
  }
  RING_HOST_DEVICE const std::uint32_t* row(std::int32_t row, std::int32_t head) const {
    return bits + (std::int64_t{row} * heads + head) * words;
  }
  // Returns true if key block k is kept in a row of the selection; false if the row is before the first one.
  RING_HOST_DEVICE bool keeps(std::int32_t of_row, std::int32_t head, std::int32_t k) const {
    return of_row >= 0 && k < words * 32 && (row(of_row, head)[k / 32] >> (k % 32) & 1u);
  }
};

// Throws Error, naming `op`, if the pattern selects but there is no selection for these spans, or if there is a
// selection but the pattern does not select.
void check(const BlockSelection&, const Pattern&, const std::vector<Span>& queries, const std::vector<Span>& keys,
           std::int64_t kv_heads, const char* op);

}  // namespace ring
