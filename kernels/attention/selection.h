#pragma once
// A selection: which blocks of keys each block of queries keeps, as data on the device. Patterns whose rules go by
// content need one for each call; block_select.h makes it. It then speaks for all heads, also for those of other rules.

#include <vector>

#include "core/host_device.h"
#include "core/tensor.h"
#include "kernels/attention/pattern.h"
#include "kernels/kernel.h"

namespace ring {

struct BlockSelection {
  // i32 [rows, Hk, words]: block k of keys is bit k % 32 of word k / 32. Row rows[b] + i is for block i of the queries
  // of span b, both counted from the block in which the document starts. A block has the bit of itself, and none of
  // later ones. Undefined: no selection.
  Tensor bits;
  // Empty: the spans are whole documents, and these are first_blocks().
  std::vector<std::int32_t> rows{};
};

// Blocks of a span that is a whole document; those before each span, and, at the end, those of all.
std::int32_t blocks_of(const Pattern&, const Span&);
std::vector<std::int32_t> first_blocks(const Pattern&, const std::vector<Span>&);

// What kernels read of a selection; null: there is none.
struct SelectedBlocks {
  const std::uint32_t* bits = nullptr;
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
  RING_HOST_DEVICE bool keeps(std::int32_t of_row, std::int32_t head, std::int32_t k) const {
    return k < words * 32 && (row(of_row, head)[k / 32] >> (k % 32) & 1u);
  }
};

// Error, naming `op`: a pattern that selects without a selection for these spans, or the other way round.
void check(const BlockSelection&, const Pattern&, const std::vector<Span>& queries, const std::vector<Span>& keys,
           std::int64_t kv_heads, const char* op);

// The selection of one call, in the order of the stream: q [N,Hq,D], k [N,Hk,D] and their scale as attention gets them.
// No gradient goes through it. A pattern that does not select: none.
BlockSelection select_blocks(const Pattern&, const Tensor& q, const Tensor& k, float scale, const std::vector<Span>&,
                             const ExecContext&);

}  // namespace ring
