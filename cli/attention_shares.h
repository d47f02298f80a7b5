#pragma once
// Describes for `attention show` how ranks share a model's layers: how evenly pairs of queries and keys are
// distributed, and which keys ranks need from each other.

#include <string>

#include "kernels/attention/pattern.h"
#include "model/config.h"
#include "parallel/config.h"

namespace ring {

// Returns e.g. "parallel.cp: 4, parallel.tp: 2"; empty if both degrees are 1, or if cp is 0 (set by the run).
std::string sharing_degrees_text(const ParallelConfig&);

// Returns the busiest rank's number of pairs of queries and keys, relative to the mean, for one pattern of the model
// and `length` tokens, e.g. "contiguous 1.500, zigzag 1.000, all_to_all 1.000". Layouts that cannot divide the KV heads
// are left out. Without context parallelism: "heads 1.000".
std::string imbalance_text(const Pattern&, const ModelConfig&, const ParallelConfig&, std::int64_t length);

// Returns the title above the results of attended_keys_text(); "" without context parallelism.
std::string attended_keys_title(const ModelConfig&, const ParallelConfig&, std::int64_t length);

// A ring sends other ranks' keys to a rank if they come before its queries. Returns the share of these keys to which
// the queries attend, e.g. "12.5 % by a KV head, 40.0 % by any of 4 KV heads". kept: a layer's pattern; if the layer
// selects blocks, the pattern of the blocks that it selected.
std::string attended_keys_text(const Pattern& kept, const ModelConfig&, const ParallelConfig&, std::int64_t length);

}  // namespace ring
