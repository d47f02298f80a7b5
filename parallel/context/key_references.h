#pragma once
// The key blocks that the queries of all ranks selected, in host memory. Plans skip keys that no query references.

#include <cstdint>
#include <vector>

#include "kernels/attention/selection.h"

namespace ring {

// Without lists, the references are unknown, and all keys that a query may see are sent.
using ReferencedBlocks = SelectedBlocks;

class KeyReferences {
 public:
  KeyReferences() = default;  // references are unknown
  // Starts without references: the lists of kept blocks, [rows,heads,room] with capacity `room`, are empty.
  KeyReferences(std::int64_t rows, std::int64_t heads, std::int64_t room)
      : heads_(heads), room_(room), kept_(static_cast<std::size_t>(rows * heads * room), kNone) {}

  // Sets the lists of rows [row, row + count), which a rank selected. All ranks that select for the same row set the
  // same list.
  void add(const std::int32_t* kept, std::int64_t row, std::int64_t count) {
    const std::int64_t size = heads_ * room_;
    for (std::int64_t i = 0; i < count * size; ++i)
      kept_[static_cast<std::size_t>(row * size + i)] = static_cast<std::uint32_t>(kept[i]);
  }

  // Returns the references of the KV heads `some`, renumbered from 0; `pattern` is the pattern of these heads. The
  // result points into this object.
  ReferencedBlocks of(KvHeads some, const Pattern& pattern) const {
    ReferencedBlocks s;
    if (kept_.empty() || !pattern.selects()) return s;
    s.kept = kept_.data() + some.first * room_;
    s.heads = static_cast<std::int32_t>(heads_), s.room = static_cast<std::int32_t>(room_);
    return s;
  }

 private:
  static constexpr auto kNone = static_cast<std::uint32_t>(kNoBlock);
  std::int64_t heads_ = 0, room_ = 0;
  std::vector<std::uint32_t> kept_;
};

}  // namespace ring
