#pragma once
// A split of a corpus as a data set that Megatron-LM reads; data/megatron.h has the layout.

#include <cstdint>
#include <string>

namespace ring {

class TokenSplit;

// Writes PREFIX.bin, with the tokens as u16 where the vocabulary has fewer than 65,500 tokens and as i32 elsewhere, as
// Megatron-LM chooses, and then PREFIX.idx, with one sequence for each document. Each appears under its name only when
// it is complete. Error: the split is empty, has a loss mask, or a document of 2^31 tokens; a file cannot be written.
void export_megatron(const TokenSplit&, std::uint64_t vocab_size, const std::string& prefix);

}  // namespace ring
