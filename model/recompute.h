#pragma once
// Which activations a backward computes again instead of keeping them. Bits do not change.

#include <cstdint>
#include <vector>

namespace ring {

// What a block computes again. A sublayer's norm belongs to it; attention's output and log-sum-exp are always kept.
enum class Recompute : std::uint8_t {
  none,
  attention,  // everything between the input and the output of the attention sublayer
  mlp,        // everything between the input and the output of the MLP sublayer
  block,      // both, and what is between them
};

struct RecomputePlan {
  std::vector<Recompute> blocks;

  static RecomputePlan uniform(std::int64_t layers, Recompute how) {
    return {std::vector<Recompute>(static_cast<std::size_t>(layers), how)};
  }
};

}  // namespace ring
