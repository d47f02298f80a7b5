#pragma once
// Settings of pools: keys that tokens see in addition to the (query, key) pairs of the kind.

#include "model/attention/config.h"

namespace ring {

// Returns true if the layer learns the weights of its pools.
bool learns_pools(const AttentionConfig&);

}  // namespace ring
