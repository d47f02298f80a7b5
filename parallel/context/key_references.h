#pragma once
// The key blocks that the queries of all ranks selected, in host memory. Plans skip keys that no query references.

#include <cstdint>
#include <vector>

#include "kernels/attention/selection.h"

namespace ring {

// Without bits the references are unknown: then all keys are sent that a query may see.
using ReferencedBlocks = SelectedBlocks;

class KeyReferences {
 public:
  KeyReferences() = default;  // references are unknown
  // Starts without references: bits [rows,heads,words] are all 0.
  KeyReferences(std::int64_t rows, std::int64_t heads, std::int64_t words)
      : heads_(heads), words_(words), bits_(static_cast<std::size_t>(rows * heads * words)) {}

  // Adds the blocks that a rank selected for rows [row, row + count).
  void add(const std::int32_t* bits, std::int64_t row, std::int64_t count) {
    const std::int64_t size = heads_ * words_;
    for (std::int64_t i = 0; i < count * size; ++i)
      bits_[static_cast<std::size_t>(row * size + i)] |= static_cast<std::uint32_t>(bits[i]);
  }

  // Returns the references of the KV heads `some`, renumbered from 0; `pattern` is the pattern of these heads. The
  // result points into this object.
  ReferencedBlocks of(KvHeads some, const Pattern& pattern) const {
    ReferencedBlocks s;
    if (bits_.empty() || !pattern.selects()) return s;
    s.bits = bits_.data() + some.first * words_;
    s.heads = static_cast<std::int32_t>(heads_), s.words = static_cast<std::int32_t>(words_);
    return s;
  }

 private:
  std::int64_t heads_ = 0, words_ = 0;
  std::vector<std::uint32_t> bits_;
};

}  // namespace ring
