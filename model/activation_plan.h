#pragma once
// Plans for each block whether the activations that backward needs are saved, recomputed, or offloaded to the host. All
// choices give bit-identical results.

#include <cstdint>
#include <vector>

namespace ring {

// The part of a block that backward recomputes. A sublayer includes its norm. Attention's output and log-sum-exp are
// saved, except with `full`.
enum class Recompute : std::uint8_t {
  none,
  attention,  // everything between the input and the output of the attention sublayer
  mlp,        // everything between the input and the output of the MLP sublayer
  block,      // both sublayers, and everything between them
  full,       // everything between the block's input and its output: attention runs twice
};

struct BlockPlan {
  Recompute recompute = Recompute::none;
  bool offload = false;  // saved tensors are in host memory between the block's forward and its backward
  bool operator==(const BlockPlan&) const = default;
};

struct ActivationPlan {
  std::vector<BlockPlan> blocks;
  // The first segments * segment_blocks blocks are grouped into segments. A segment saves only its input: backward
  // reruns the segment's forward, in which each block follows its own plan.
  std::int64_t segments = 0, segment_blocks = 0;

  // Returns the same plan for all blocks, except that the last block does not offload: backward begins with it.
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
