#pragma once
// Distance biases for tests. Biases are initialized to 0, which would test nothing.

#include "model/decoder.h"
#include "tests/model/named_params.h"

namespace ring::test {

// Fills the biases on a CPU. They differ between KV heads and between neighbouring buckets.
inline void fill_index_biases(Decoder& model) {
  for (const Param* biases : params_named(model, "attention.index.distance.bias"))
    for (std::int64_t i = 0; i < biases->var.value.numel(); ++i)
      biases->var.value.data<float>()[i] = 0.01f * static_cast<float>(i * 7 % 11 - 5);
}

}  // namespace ring::test
