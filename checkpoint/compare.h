#pragma once
// Compares two checkpoints tensor by tensor and value by value. The checkpoints may have different numbers of ranks.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace ring {

struct TensorDifference {
  std::string name;
  // "only in the first", "only in the second" or e.g. "f32[4,8] and bf16[4,8]"; empty if only elements differ.
  std::string kind;
  std::int64_t elements = 0;  // elements that are not bit-identical
  double largest = 0;         // largest absolute difference; NaN if an element is NaN
};

struct CheckpointDifference {
  std::vector<TensorDifference> tensors;  // sorted by name
  std::vector<std::string> values;        // e.g. "train.step: 10 and 20"
  bool none() const { return tensors.empty() && values.empty(); }
};

// Holds one tensor of each checkpoint in memory at a time. Verifies the hashes of the slices that it reads.
CheckpointDifference compare_checkpoints(const std::filesystem::path& first, const Manifest&,
                                         const std::filesystem::path& second, const Manifest&);

}  // namespace ring
