#pragma once
// What differs between the tensors and values of two checkpoints, whatever ranks wrote them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace ring {

struct TensorDifference {
  std::string name;
  std::string kind;           // "only in the first", "f32[4,8] and bf16[4,8]"; empty: values differ
  std::int64_t elements = 0;  // whose bits differ
  double largest = 0;         // of their absolute differences; NaN where one of two is a NaN
};

struct CheckpointDifference {
  std::vector<TensorDifference> tensors;  // by name
  std::vector<std::string> values;        // "train.step: 10 and 20"
  bool none() const { return tensors.empty() && values.empty(); }
};

// Reads one tensor of each at a time, and checks the hashes of what it reads.
CheckpointDifference compare_checkpoints(const std::filesystem::path& first, const Manifest&,
                                         const std::filesystem::path& second, const Manifest&);

}  // namespace ring
