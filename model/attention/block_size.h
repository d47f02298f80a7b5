#pragma once
// Conversion of block_sparse sections to a different block size, with rules that keep about as many tokens.

#include <cstdint>

#include "model/attention/config.h"

namespace ring {

// Returns true if the block size may change. A rule from a file fixes it.
bool block_is_free(const AttentionConfig&);

// Returns the section with blocks of `block` tokens, 64 or 128. `local`, `first`, `keep` and `explore` cover as many
// tokens as before, rounded up to whole blocks; `every`, `density` and `mass` are shares and stay. A rule that selects
// blocks keeps room for at least one selected block, and does not lower `local` to 1, since the first tokens of a block
// could then see nothing of the block before.
AttentionConfig with_block(AttentionConfig, std::int64_t block);

}  // namespace ring
