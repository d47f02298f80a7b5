#pragma once
// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11),
// section 3.3. Each random number has an address: the same (seed, step, site, element) gives the same value on every
// device, for every sharding, and after recomputation and resume. There is no generator state.

#include <array>
#include <cstdint>
#include <string_view>

#include "core/host_device.h"

namespace ring {

// One stream of random numbers: seed of the run, step, and place in the model.
struct RandomSite {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t site = 0;
};

struct Philox4 {
  std::uint32_t v[4];
};

RING_HOST_DEVICE constexpr Philox4 philox(std::uint64_t key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                          std::uint32_t c3) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Returns the four numbers of elements 4*block .. 4*block+3 at a site.
RING_HOST_DEVICE constexpr Philox4 random_block(const RandomSite& s, std::uint64_t block) {
  return philox(s.seed, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), s.step, s.site);
}
RING_HOST_DEVICE constexpr std::uint32_t random_bits(const RandomSite& s, std::uint64_t element) {
  return random_block(s, element / 4).v[element % 4];
}
// Converts to a uniform number in [0, 1), 24 bits.
RING_HOST_DEVICE constexpr float to_uniform(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// Returns the standard normal number (Box-Muller) of one element at a site. Host only, for initialization.
float random_normal(const RandomSite& s, std::uint64_t element);

// Hashes a name to a site number, equal on every machine (FNV-1a).
constexpr std::uint32_t site_of(std::string_view name) {
  std::uint32_t h = 2166136261u;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return h;
}

}  // namespace ring
