#pragma once
// Distance biases for tests. Biases are initialized to 0, which would test nothing.

#include "model/decoder.h"

namespace ring::test {

// Fills the biases on a CPU. They differ between KV heads and between neighbouring buckets.
inline void fill_index_biases(Decoder& model) {
  for (DecoderBlock& block : model.blocks()) {
    const Indexer* indexer = block.attention().indexer();
    const Tensor biases = indexer ? indexer->biases().value : Tensor{};
    for (std::int64_t i = 0; biases.defined() && i < biases.numel(); ++i)
      biases.data<float>()[i] = 0.01f * static_cast<float>(i * 7 % 11 - 5);
  }
}

}  // namespace ring::test
