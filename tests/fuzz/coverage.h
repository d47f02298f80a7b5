#pragma once
// The coverage of the last input: g++ calls __sanitizer_cov_trace_pc() in every basic block of a room that was built
// with RING_FUZZ. Without RING_FUZZ nothing is ever new, and the driver mutates blindly.

#include <cstddef>

namespace ring::fuzz {

void forget_path();           // called before an input
bool reached_anything_new();  // called after it: a new pair of blocks, or a new order of magnitude of how often one ran
std::size_t pairs_reached();  // over all inputs so far

}  // namespace ring::fuzz
