#pragma once
// Cache of the tokens of short words, for encoders. Direct-mapped: each word has one slot, in which newer words replace
// older ones.

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ring {

class WordCache {
 public:
  // Maximum bytes of a cached word, and its maximum number of tokens.
  static constexpr std::size_t kLongest = 46, kMaxIds = 20;

  // Announces that `bytes` bytes of text will be encoded. Allocates the 4 MB cache only after announcements of more
  // than kWorthIt bytes, a few sentences.
  void announce(std::size_t bytes) {
    seen_ += bytes;
    if (slots_.empty() && seen_ > kWorthIt) slots_.resize(kSlots);
  }
  // Returns true if the word is cached, and appends its tokens to `out`.
  bool find(std::string_view word, std::vector<std::int32_t>& out) {
    slot_ =
        word.size() <= kLongest && !slots_.empty() ? &slots_[XXH3_64bits(word.data(), word.size()) % kSlots] : nullptr;
    if (!slot_ || std::string_view(slot_->word.data(), slot_->length) != word || slot_->length == 0) return false;
    out.insert(out.end(), slot_->ids.begin(), slot_->ids.begin() + slot_->count);
    return true;
  }
  // Caches the tokens of the word that the previous find() did not find.
  void keep(std::string_view word, std::span<const std::int32_t> ids) {
    if (!slot_ || ids.size() > kMaxIds) return;
    std::ranges::copy(word, slot_->word.begin());
    std::ranges::copy(ids, slot_->ids.begin());
    slot_->length = static_cast<std::uint8_t>(word.size());
    slot_->count = static_cast<std::uint8_t>(ids.size());
  }

 private:
  static constexpr std::size_t kSlots = 1 << 15, kWorthIt = 4096;
  struct alignas(128) Slot {  // two CPU cache lines, which are fetched together
    std::array<char, kLongest> word;
    std::uint8_t length = 0, count = 0;
    std::array<std::int32_t, kMaxIds> ids;
  };
  std::vector<Slot> slots_;
  Slot* slot_ = nullptr;  // slot of the last find(); null if the word cannot be cached
  std::size_t seen_ = 0;
};

}  // namespace ring
