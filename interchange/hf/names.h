#pragma once
// Names and layouts of our tensors in published weights.

#include <map>
#include <string>
#include <vector>

#include "core/shape.h"
#include "interchange/hf/family.h"

namespace ring {

// One of our logical parameters, [outputs, inputs] or [channels].
struct OurTensor {
  std::string name;  // e.g. "blocks.0.attention.wq.weight"
  Shape shape;
};

// A tensor in a published file: one or more of our tensors concatenated along rows (GPT-2 stores queries, keys and
// values in one tensor), transposed if the family stores [inputs, outputs]. The rows of queries and keys keep their
// order, since both sides rotate channel i with channel i + D/2.
struct PublishedTensor {
  std::string name;
  std::vector<OurTensor> parts;
  bool transposed = false;
  std::int64_t interleaved_rows = 0;  // if > 0, parts alternate in blocks of this many rows
  std::int64_t taps = 0;              // if > 0, a convolution over so many tokens: [channels * taps] in our layout,
                                      // [channels,1,taps] in the file
  bool is_reordered() const { return transposed || interleaved_rows > 0; }
  std::vector<std::int64_t> shape() const;  // shape in the file
  std::int64_t numel() const;
};

// The names of our modules in one kind of file.
struct Naming {
  // Module names in the file, by our module names. Both lack the block's prefix and the ending ".weight" or ".bias".
  // A parameter whose name has no such ending is listed by its complete name.
  std::map<std::string, std::string> modules;
  std::string blocks;  // prefix of the block number, e.g. "model.layers."
};
// Returns all published tensors of the model, in the order of a forward pass; each of our tensors is in exactly one of
// them. No tensor is transposed. Low-rank adapters (model.lora) are not included.
std::vector<PublishedTensor> named_tensors(const Naming&, const ModelConfig& resolved);
// Like named_tensors(), with the names and layout of the family's class in transformers 5.
std::vector<PublishedTensor> published_tensors(Family, const ModelConfig& resolved);
// Like published_tensors(), with the names of the first published models, which newer versions of transformers still
// load. Only those of Olmo Hybrid differ.
std::vector<PublishedTensor> exported_tensors(Family, const ModelConfig& resolved);
// Returns the other forms in which files may store a tensor of published_tensors(): each is a list of tensors that make
// up the tensor if they are concatenated along rows.
std::vector<std::vector<std::string>> other_forms(Family, const std::string& name);

// Convert values between our layout and the published one, row-major; `all` holds the parts concatenated along rows.
std::vector<float> to_published_layout(const PublishedTensor&, std::vector<float> all);
std::vector<float> from_published_layout(const PublishedTensor&, std::vector<float> values);

}  // namespace ring
