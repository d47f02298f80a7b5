#pragma once
// What `attention show` tells of a layout: how evenly its ranks share a layer, and what they need of each other.

#include <string>

#include "kernels/attention/pattern.h"
#include "model/config.h"
#include "parallel/config.h"

namespace ring {

// "parallel.cp: 4, parallel.tp: 2"; empty: one rank has all, or cp takes what a run leaves it.
std::string sharing_degrees(const ParallelConfig&);

// The busiest rank's pairs over the mean, for a pattern of the model's over `length` tokens: "contiguous 1.500, zigzag
// 1.000, all_to_all 1.000", those of them that this model can have; by heads alone "heads 1.000".
std::string shares_text(const Pattern&, const ModelConfig&, const ParallelConfig&, std::int64_t length);

// Says what lines of referenced_text() count; empty: no ranks share rows.
std::string referenced_title(const ModelConfig&, const ParallelConfig&, std::int64_t length);

// The keys of other ranks before a rank's queries that these attend to, of all that a ring brings ahead of them:
// "12.5 % by a KV head, 40.0 % by any of 4 KV heads". kept: of a layer, a selection as a drawing.
std::string referenced_text(const Pattern& kept, const ModelConfig&, const ParallelConfig&, std::int64_t length);

}  // namespace ring
