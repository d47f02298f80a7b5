#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ring::fuzz {
namespace {

std::size_t below(std::size_t n, Random& random) { return n == 0 ? 0 : random() % n; }

struct Range {
  std::size_t at, bytes;
};
Range some_range(const std::string& s, Random& random) {
  const std::size_t at = below(s.size(), random);
  const std::size_t most = below(4, random) == 0 ? s.size() - at : std::min<std::size_t>(16, s.size() - at);
  return {at, below(most + 1, random)};
}

void flip_bit(std::string& s, Random& random) {
  if (!s.empty()) s[below(s.size(), random)] ^= static_cast<char>(1 << below(8, random));
}

void set_byte(std::string& s, Random& random) {
  constexpr std::string_view kTelling("\0\xff\x7f\x80 \n\t:,.-/\\\"'[]{}&*!|>%@`#=", 30);
  if (s.empty()) return;
  const bool telling = below(2, random);
  s[below(s.size(), random)] = telling ? kTelling[below(kTelling.size(), random)] : static_cast<char>(random());
}

void set_integer(std::string& s, Random& random) {
  constexpr std::array<std::uint64_t, 12> kExtreme = {0,
                                                      1,
                                                      0x7f,
                                                      0xff,
                                                      0x7fff,
                                                      0xffff,
                                                      0x7fffffff,
                                                      0xffffffff,
                                                      0x100000001,
                                                      0x7fffffffffffffff,
                                                      ~std::uint64_t{0},
                                                      std::uint64_t{1} << 63};
  const std::size_t width = std::size_t{1} << below(4, random);
  if (s.size() < width) return;
  const std::size_t at = below(s.size() - width + 1, random);
  std::uint64_t value = kExtreme[below(kExtreme.size(), random)];
  if (below(2, random)) {  // or one off from the value that is there
    value = 0;
    std::memcpy(&value, s.data() + at, width);
    value += below(2, random) ? 1 : ~std::uint64_t{0};
  }
  std::memcpy(s.data() + at, &value, width);
}

void set_number_in_text(std::string& s, Random& random) {
  constexpr std::array<const char*, 14> kNumbers = {
      "0",      "-1",   "1e308", ".nan", ".inf",  "4294967297",          "2147483648",
      "1e-320", "0x10", "",      "007",  "1_000", "9223372036854775807", "18446744073709551616"};
  const auto digit = [](unsigned char c) { return c >= '0' && c <= '9'; };
  const auto from = std::find_if(s.begin() + static_cast<std::ptrdiff_t>(below(s.size(), random)), s.end(), digit);
  const auto to = std::find_if_not(from, s.end(), digit);
  s.replace(from, to, kNumbers[below(kNumbers.size(), random)]);
}

void erase(std::string& s, Random& random) {
  const Range r = some_range(s, random);
  s.erase(r.at, r.bytes);
}

void repeat(std::string& s, Random& random) {
  const Range r = some_range(s, random);
  const std::string part = s.substr(r.at, r.bytes);
  for (std::size_t n = below(8, random) == 0 ? below(200, random) : 1; n > 0; --n) s.insert(r.at, part);
}

void move(std::string& s, Random& random) {
  const Range r = some_range(s, random);
  const std::string part = s.substr(r.at, r.bytes);
  s.erase(r.at, r.bytes);
  s.insert(below(s.size() + 1, random), part);
}

void insert_from(std::string& s, const std::string& other, Random& random) {
  const Range r = some_range(other, random);
  s.insert(below(s.size() + 1, random), other, r.at, r.bytes);
}

void change(std::string& s, const std::vector<std::string>& others, Random& random) {
  switch (below(8, random)) {
    case 0: return flip_bit(s, random);
    case 1: return set_byte(s, random);
    case 2: return set_integer(s, random);
    case 3: return set_number_in_text(s, random);
    case 4: return erase(s, random);
    case 5: return repeat(s, random);
    case 6: return move(s, random);
    default: return insert_from(s, others[below(others.size(), random)], random);
  }
}

}  // namespace

std::string mutate(std::string input, const std::vector<std::string>& others, std::size_t longest, Random& random) {
  for (std::size_t n = 1 + below(8, random); n > 0; --n) {
    change(input, others, random);
    if (input.size() > longest) input.resize(longest);
  }
  return input;
}

}  // namespace ring::fuzz
