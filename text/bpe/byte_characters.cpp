#include <array>

#include "text/bpe/description.h"

namespace ring::bpe {
namespace {

bool is_itself(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD); }

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, 0x200> byte{};
  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const char32_t c = is_itself(b) ? static_cast<char32_t>(b) : next++;
      character[static_cast<std::size_t>(b)] = c;
      byte[c] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet all;
  return all;
}

}  // namespace

char32_t character_of(unsigned char byte) { return alphabet().character[byte]; }
int byte_of(char32_t c) { return c < alphabet().byte.size() ? alphabet().byte[c] : -1; }

}  // namespace ring::bpe
