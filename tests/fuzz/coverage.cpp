#include "tests/fuzz/coverage.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

// Built without instrumentation: its own blocks must not count.

namespace {

constexpr std::size_t kPairs = 1 << 16;
std::array<std::uint8_t, kPairs> counts;      // hits in the current input, by a hash of two successive blocks
std::array<std::uint8_t, kPairs> magnitudes;  // over all inputs: one bit for each power of two that a count reached
thread_local std::uintptr_t previous = 0;

bool record_magnitude(std::size_t pair) {
  if (counts[pair] == 0) return false;
  const auto bit = static_cast<std::uint8_t>(1u << (std::bit_width(counts[pair]) - 1));
  const bool news = (magnitudes[pair] & bit) == 0;
  magnitudes[pair] |= bit;
  return news;
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::uint8_t& count = counts[(here ^ (here >> 16) ^ previous) % kPairs];
  if (count != 255) ++count;  // threads may lose a count, which only guides the search
  previous = here >> 1;
}

namespace ring::fuzz {

void forget_path() {
  counts.fill(0);
  previous = 0;
}

bool reached_anything_new() {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  bool news = false;
  for (std::size_t word = 0; word < kPairs; word += kWord) {
    std::uint64_t eight = 0;  // most counts are zero
    std::memcpy(&eight, &counts[word], kWord);
    if (eight == 0) continue;
    for (std::size_t i = word; i < word + kWord; ++i) news |= record_magnitude(i);
  }
  return news;
}

std::size_t pairs_reached() {
  std::size_t n = 0;
  for (const std::uint8_t m : magnitudes) n += m != 0;
  return n;
}

}  // namespace ring::fuzz
