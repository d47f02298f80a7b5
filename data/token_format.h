#pragma once
// What the writer and the reader of a corpus agree on; the layout is described in data/token_store.h.

#include <cstddef>
#include <cstdint>

namespace ring {

inline constexpr const char* kCorpusFormat = "ringmaster corpus";
inline constexpr std::uint64_t kCorpusVersion = 1;

constexpr std::size_t token_width(std::uint64_t vocab) { return vocab <= 65536 ? 2 : 4; }  // bytes

}  // namespace ring
