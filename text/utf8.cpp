#include "text/utf8.h"

#include <algorithm>
#include <cstring>

namespace ring::utf8 {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

// Returns the length of a character, determined from its first byte; 0 if no character starts with this byte.
std::size_t announced(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Checks the second byte, which excludes overlong forms, surrogates and values that are too large (table 3-7 of the
// Unicode standard).
bool second_fits(unsigned char lead, unsigned char second) {
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

// Returns how many of the first `n` bytes can belong to a character that starts at text[0].
std::size_t agreeing(std::string_view text, std::size_t n) {
  for (std::size_t i = 1; i < n; ++i) {
    const bool fits = i == 1 ? second_fits(byte_at(text, 0), byte_at(text, 1)) : is_continuation(text[i]);
    if (!fits) return i;
  }
  return n;
}

}  // namespace

std::size_t valid_length(std::string_view text) {
  const std::size_t n = announced(byte_at(text, 0));
  if (n == 0 || n > text.size()) return 0;
  return agreeing(text, n) == n ? n : 0;
}

bool is_incomplete(std::string_view text) {
  if (text.empty()) return false;
  const std::size_t n = announced(byte_at(text, 0));
  return n > text.size() && agreeing(text, text.size()) == text.size();
}

char32_t decode(std::string_view text, std::size_t length) {
  if (length == 1) return byte_at(text, 0);
  char32_t c = byte_at(text, 0) & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) c = (c << 6) | (byte_at(text, i) & 0x3Fu);
  return c;
}

void append(std::string& out, char32_t c) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12), tail(6), tail(0);
  }
}

std::size_t valid_prefix_length(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight;  // eight bytes, which are skipped at once if all are ASCII
    if (i + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080ull) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    const std::size_t n = valid_length(text.substr(i));
    if (n == 0) return i;
    i += n;
  }
  return i;
}

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); });
}

std::size_t floor_boundary(std::string_view text, std::size_t position) {
  std::size_t cut = std::min(position, text.size());
  for (int back = 0; back < 3 && cut > 0 && cut < text.size() && is_continuation(text[cut]); ++back) --cut;
  return cut;
}

}  // namespace ring::utf8
