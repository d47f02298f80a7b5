#pragma once
// What `attention show` tells of a layout: how evenly its ranks share a layer.

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

}  // namespace ring
