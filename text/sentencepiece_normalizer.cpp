#include "text/sentencepiece_normalizer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "text/utf8.h"

namespace ring {
namespace {

// Fields of a unit of a double-array trie (Darts-clone, Yata 2008).
bool has_value(std::uint32_t unit) { return unit >> 8 & 1; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFFu; }
std::uint32_t label_of(std::uint32_t unit) { return unit & (1u << 31 | 0xFFu); }
std::uint32_t offset_of(std::uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(SentencePieceNormalization spec) : spec_(std::move(spec)) {
  const std::string_view table = spec_.replacements;
  if (!table.empty()) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, table.data(), sizeof(bytes));
    units_.resize(bytes / sizeof(std::uint32_t));
    std::memcpy(units_.data(), table.data() + sizeof(bytes), bytes);
    texts_ = table.substr(sizeof(bytes) + bytes);
  }
  for (const std::string& piece : spec_.kept) kept_[static_cast<unsigned char>(piece[0])].push_back(piece);
  for (auto& pieces : kept_) std::ranges::stable_sort(pieces, std::greater<>(), &std::string_view::size);
}

SentencePieceNormalizer::Replaced SentencePieceNormalizer::next(std::string_view text) const {
  for (const std::string_view piece : kept_[static_cast<unsigned char>(text[0])])
    if (text.starts_with(piece)) return {piece.size(), text.substr(0, piece.size())};
  Replaced longest{0, {}};
  std::uint32_t node = units_.empty() ? 0 : offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size() && !units_.empty(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::uint32_t unit = units_[node ^= byte];
    if (label_of(unit) != byte) break;
    node ^= offset_of(unit);
    if (has_value(unit)) longest = {i + 1, texts_.data() + value_of(units_[node])};
  }
  if (longest.length > 0) return longest;
  const std::size_t length = utf8::valid_length(text);
  return {length, text.substr(0, length)};
}

void SentencePieceNormalizer::append(std::string_view text, bool& after_blank, std::string& out) const {
  if (!spec_.removes_blanks) after_blank = false;
  if (!changes_text()) {
    out += text;
    return;
  }
  while (!text.empty()) {
    Replaced r = next(text);
    text.remove_prefix(r.length);
    while (after_blank && r.by.starts_with(' ')) r.by.remove_prefix(1);
    if (r.by.empty()) continue;
    out += r.by;
    after_blank = spec_.removes_blanks && r.by.ends_with(' ');
  }
}

}  // namespace ring
