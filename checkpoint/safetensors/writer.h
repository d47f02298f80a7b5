#pragma once
// Writes weights as safetensors: one file, or several with an index. Holds one tensor in memory at a time.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/safetensors/float_type.h"

namespace ring {

struct OutputTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct SafetensorsOutput {
  FloatType type = FloatType::f32;  // type in which every tensor is written
  // Maximum bytes of tensors per file. A larger tensor gets its own file.
  std::uint64_t max_bytes = 5'000'000'000;
};

// Writes model.safetensors, or model-00001-of-00003.safetensors ... and model.safetensors.index.json, into an existing
// folder, and syncs the files. values(i) returns tensor i as f32, row by row; it is called once per tensor, in order.
// Returns the names of the files. Throws Error if a value exceeds the range of the type or the disk is full.
std::vector<std::string> write_safetensors(const std::filesystem::path& folder, const std::vector<OutputTensor>&,
                                           const SafetensorsOutput&,
                                           const std::function<std::vector<float>(std::size_t i)>& values);

}  // namespace ring
