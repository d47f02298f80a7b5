#pragma once
// Text that a tokenizer.json processes, with the origin of each byte in the input.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ring::bpe {

// Bytes [begin, end) of the input. The origin of each byte of a character is the whole character.
struct Origin {
  std::uint64_t begin = 0, end = 0;
};
using Origins = std::vector<Origin>;  // one per byte of the text; empty if origins are not tracked

enum class Start : std::uint8_t {
  text,     // starts a text
  section,  // follows a part that was split off
  cut       // continues the text that was encoded before, so nothing is added at the front
};

// Non-owning view of a part of a text.
struct TextSlice {
  std::string_view text;
  std::span<const Origin> origins;
  Start start = Start::text;
  TextSlice part(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), origins.empty() ? origins : origins.subspan(begin, end - begin),
            begin == 0 ? start : Start::section};
  }
};

// A text with its own storage.
struct Passage {
  std::string text;
  Origins origins;
  Start start = Start::text;

  explicit Passage(const TextSlice& s) : text(s.text), origins(s.origins.begin(), s.origins.end()), start(s.start) {}
  TextSlice all() const { return {text, origins, start}; }
  // Inserts `front` before the text, with the origin of the text's first character. The text must not be empty.
  void prepend(std::string_view front);
  // Replaces every `from` by `to`, with the origin of the last byte of `from`. `from` must not be empty.
  void replace(std::string_view from, std::string_view to);
};

using SliceFn = std::function<void(const TextSlice&)>;

}  // namespace ring::bpe
