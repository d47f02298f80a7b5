#pragma once
// How ranks share a model's layers, for `attention show`: how evenly pairs are distributed, and which keys ranks need
// from each other.

#include <string>

#include "kernels/attention/pattern.h"
#include "model/config.h"
#include "parallel/config.h"

namespace ring {

// Returns e.g. "parallel.cp: 4, parallel.tp: 2"; empty if both degrees are 1, or if cp is 0 (set by the run).
std::string sharing_degrees(const ParallelConfig&);

// Returns the busiest rank's number of pairs, relative to the mean, for one pattern of the model and `length` tokens,
// e.g. "contiguous 1.500, zigzag 1.000, all_to_all 1.000". Layouts that cannot divide the KV heads are left out.
// Without cp: "heads 1.000".
std::string shares_text(const Pattern&, const ModelConfig&, const ParallelConfig&, std::int64_t length);

// Returns the title of the lines returned by referenced_text(); empty without cp.
std::string referenced_title(const ModelConfig&, const ParallelConfig&, std::int64_t length);

// Returns the share of the keys that a ring sends to a rank (other ranks' keys before its queries) to which these
// queries attend, e.g. "12.5 % by a KV head, 40.0 % by any of 4 KV heads". kept: a layer's pattern, with a selection
// given as drawn blocks.
std::string referenced_text(const Pattern& kept, const ModelConfig&, const ParallelConfig&, std::int64_t length);

}  // namespace ring
