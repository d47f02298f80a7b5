#pragma once
// What our tensors are called and how they lie in published weights.

#include <map>
#include <string>
#include <vector>

#include "core/shape.h"
#include "interchange/hf/family.h"

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

// How a kind of file calls our tensors.
struct Naming {
  std::map<std::string, std::string> modules;  // by ours, without the block and without ".weight" or ".bias"
  std::string blocks;                          // in front of a block's number: "model.layers."
};
// All tensors of the model, in the order of a forward pass: each of ours is in one of them. None is transposed.
std::vector<PublishedTensor> named_tensors(const Naming&, const ModelConfig& resolved);
// The same as the family has them.
std::vector<PublishedTensor> published_tensors(Family, const ModelConfig& resolved);

// Between the two: `all` holds the parts below each other, row by row.
std::vector<float> to_published(const PublishedTensor&, std::vector<float> all);
std::vector<float> from_published(const PublishedTensor&, std::vector<float> values);

}  // namespace ring
