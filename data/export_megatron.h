#pragma once
// Exports a corpus split as a Megatron-LM data set; data/megatron.h describes the layout.

#include <cstdint>
#include <string>

namespace ring {

class TokenSplit;

// Writes PREFIX.bin, then PREFIX.idx with one sequence per document. As in Megatron-LM, tokens are u16 if the
// vocabulary has fewer than 65,500 tokens, else i32. Each file appears under its name only once it is complete. Throws
// Error if the split is empty, if it has a loss mask or a document of 2^31 or more tokens, or if a file cannot be
// written.
void export_megatron(const TokenSplit&, std::uint64_t vocab_size, const std::string& prefix);

}  // namespace ring
