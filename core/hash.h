#pragma once
// xxh3-64, the checksum of tokenizers, corpora and checkpoints.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ring {

std::uint64_t xxh3(std::string_view bytes, std::uint64_t seed = 0);

// Computes xxh3() of bytes that arrive in pieces.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(StreamHash&&) noexcept;
  StreamHash& operator=(StreamHash&&) noexcept;
  void update(const void* data, std::size_t bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hex64(std::uint64_t value);  // 16 lower-case digits

}  // namespace ring
