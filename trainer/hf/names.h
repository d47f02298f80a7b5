#pragma once
// What our tensors are called and how they lie in published weights.

#include <string>
#include <vector>

#include "core/shape.h"
#include "trainer/hf/family.h"

namespace ring {

// One of our logical parameters: [outputs, inputs], or [channels].
struct OurTensor {
  std::string name;  // "blocks.0.attention.wq.weight"
  Shape shape;
};

// A tensor of the file: ours below each other (GPT-2 has queries, keys and values in one), and transposed where the
// family keeps [inputs, outputs]. Queries and keys need no other order of rows: both sides rotate channel i with
// channel i + D/2.
struct PublishedTensor {
  std::string name;
  std::vector<OurTensor> parts;
  bool transposed = false;
  std::vector<std::int64_t> shape() const;  // in the file
  std::int64_t numel() const;
};

// All tensors of the model, in the order of a forward pass: each of ours is in one of them.
std::vector<PublishedTensor> published_tensors(Family, const ModelConfig& resolved);

// Between the two: `all` holds the parts below each other, row by row.
std::vector<float> to_published(const PublishedTensor&, std::vector<float> all);
std::vector<float> from_published(const PublishedTensor&, std::vector<float> values);

}  // namespace ring
