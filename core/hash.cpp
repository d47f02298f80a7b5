#include "core/hash.h"

#include <xxhash.h>

namespace ring {

std::uint64_t xxh3(std::string_view bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

struct StreamHash::State {
  State() : xxh(XXH3_createState()) { XXH3_64bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  XXH3_state_t* xxh;
};

StreamHash::StreamHash() : state_(std::make_unique<State>()) {}
StreamHash::~StreamHash() = default;
StreamHash::StreamHash(StreamHash&&) noexcept = default;
StreamHash& StreamHash::operator=(StreamHash&&) noexcept = default;
void StreamHash::update(const void* data, std::size_t bytes) { XXH3_64bits_update(state_->xxh, data, bytes); }
std::uint64_t StreamHash::value() const { return XXH3_64bits_digest(state_->xxh); }

std::string hex64(std::uint64_t value) {
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) out[static_cast<std::size_t>(i)] = "0123456789abcdef"[value & 15];
  return out;
}

}  // namespace ring
