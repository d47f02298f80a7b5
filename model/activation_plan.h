#pragma once
// What becomes of the activations that a backward needs: kept, computed again, or moved to the host meanwhile. Bits do
// not change.

#include <cstdint>
#include <vector>

namespace ring {

// What a block computes again. A sublayer's norm belongs to it. Attention's output and log-sum-exp are kept, but by
// `full`.
enum class Recompute : std::uint8_t {
  none,
  attention,  // everything between the input and the output of the attention sublayer
  mlp,        // everything between the input and the output of the MLP sublayer
  block,      // both, and what is between them
  full,       // all between the block's input and its output: attention runs twice
};

struct BlockPlan {
  Recompute recompute = Recompute::none;
  bool offload = false;  // what it keeps lies in host memory between its forward and its backward
  bool operator==(const BlockPlan&) const = default;
};

struct ActivationPlan {
  std::vector<BlockPlan> blocks;
  // The first blocks lie in so many segments of so many blocks, of which only the first one's input is kept: the
  // backward runs their forward again, in which each does what its plan says.
  std::int64_t segments = 0, segment_blocks = 0;

  // All blocks alike, but that the last one's stay on the device: the backward begins with them.
  static ActivationPlan uniform(std::int64_t layers, Recompute recompute, bool offload = false) {
    ActivationPlan plan{std::vector<BlockPlan>(static_cast<std::size_t>(layers), {recompute, offload})};
    if (layers > 0) plan.blocks.back().offload = false;
    return plan;
  }
  bool offloads() const {
    for (const BlockPlan& block : blocks)
      if (block.offload) return true;
    return false;
  }
};

}  // namespace ring
