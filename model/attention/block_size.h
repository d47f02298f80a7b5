#pragma once
// Conversion of block_sparse sections to a different block size, with rules that keep about as many tokens.

#include <cstdint>

#include "model/attention/config.h"

namespace ring {

// Returns true if the block size may change, which it may not if a rule is read from a file.
bool can_change_block_size(const AttentionConfig&);

// Returns the section converted to blocks of `block_tokens` tokens, 64 or 128. `local`, `first`, `keep` and `explore`
// cover as many tokens as before, rounded up to whole blocks. `every`, `density` and `mass` are fractions and do not
// change. A rule that selects blocks selects at least one. `local` is not reduced to 1, because the first tokens of a
// block would then see nothing of the block before.
AttentionConfig with_block_size(AttentionConfig, std::int64_t block_tokens);

}  // namespace ring
