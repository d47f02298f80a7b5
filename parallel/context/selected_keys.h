#pragma once
// A selection of all ranks' queries in host memory, by which plans leave out the keys that nobody selected.

#include <cstdint>
#include <vector>

#include "kernels/attention/selection.h"

namespace ring {

class SelectedKeys {
 public:
  SelectedKeys() = default;  // not known: all keys travel that a query may select
  // Zeros: rows x heads x words.
  SelectedKeys(std::int64_t rows, std::int64_t heads, std::int64_t words)
      : heads_(heads), words_(words), bits_(static_cast<std::size_t>(rows * heads * words)) {}

  // Adds what some rank has selected for `count` rows from `row` on.
  void add(const std::int32_t* bits, std::int64_t row, std::int64_t count) {
    const std::int64_t size = heads_ * words_;
    for (std::int64_t i = 0; i < count * size; ++i)
      bits_[static_cast<std::size_t>(row * size + i)] |= static_cast<std::uint32_t>(bits[i]);
  }

  // As these heads have it, numbered from 0; no bits where it is not known. Good as long as this lives.
  SelectedBlocks of(KvHeads some) const {
    SelectedBlocks s;
    if (bits_.empty()) return s;
    s.bits = bits_.data() + some.first * words_;
    s.heads = static_cast<std::int32_t>(heads_), s.words = static_cast<std::int32_t>(words_);
    return s;
  }

 private:
  std::int64_t heads_ = 0, words_ = 0;
  std::vector<std::uint32_t> bits_;
};

}  // namespace ring
