#pragma once
// Biases by distance begin at 0, which tells nothing: these values do.

#include "model/decoder.h"

namespace ring::test {

// On a CPU. Of each KV head others, such that no two neighbouring buckets are alike.
inline void fill_index_biases(Decoder& model) {
  for (DecoderBlock& block : model.blocks()) {
    const Indexer* indexer = block.attention().indexer();
    const Tensor biases = indexer ? indexer->biases().value : Tensor{};
    for (std::int64_t i = 0; biases.defined() && i < biases.numel(); ++i)
      biases.data<float>()[i] = 0.01f * static_cast<float>(i * 7 % 11 - 5);
  }
}

}  // namespace ring::test
