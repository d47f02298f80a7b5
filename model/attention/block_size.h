#pragma once
// Sections of kind block_sparse with blocks of another size, in which the rules keep about as many tokens.

#include <cstdint>

#include "model/attention/config.h"

namespace ring {

// Whether no rule counts in blocks of its own: a file that draws them is for one size.
bool block_is_free(const AttentionConfig&);

// The same with blocks of so many tokens, 64 or 128: `local`, `first`, `keep` and `explore` are as many tokens as
// before, rounded up to whole blocks; `every`, `density` and `mass` are shares, and stay. A rule that selects its
// blocks has room for one to select at least, and does not go down to local: 1, with which the first tokens of a block
// may see nothing of the one before.
AttentionConfig with_block(AttentionConfig, std::int64_t block);

}  // namespace ring
