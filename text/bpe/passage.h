#pragma once
// Text on its way through a tokenizer.json, and where in the input it came from.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ring::bpe {

// Bytes [begin, end) of the input. A byte of a character comes from the whole of it.
struct Origin {
  std::uint64_t begin = 0, end = 0;
};
using Origins = std::vector<Origin>;  // one for each byte of a text; empty: nobody asked

enum class Start : std::uint8_t {
  text,     // where a text begins
  section,  // behind something that was cut off
  cut       // goes on with what was encoded before: nothing is put in front of it
};

// A stretch of a text that lives elsewhere.
struct Stretch {
  std::string_view text;
  std::span<const Origin> origins;
  Start start = Start::text;
  Stretch part(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), origins.empty() ? origins : origins.subspan(begin, end - begin),
            begin == 0 ? start : Start::section};
  }
};

// A text of its own.
struct Passage {
  std::string text;
  Origins origins;
  Start start = Start::text;

  explicit Passage(const Stretch& s) : text(s.text), origins(s.origins.begin(), s.origins.end()), start(s.start) {}
  Stretch all() const { return {text, origins, start}; }
  // Puts `front` before the text; it comes from where the first character does. The text is not empty.
  void prepend(std::string_view front);
  // Replaces every `from` by `to`, which comes from where the last byte of each `from` does. from is not empty.
  void replace(std::string_view from, std::string_view to);
};

using TakeStretch = std::function<void(const Stretch&)>;

}  // namespace ring::bpe
