#pragma once
// What the last input reached: g++ calls __sanitizer_cov_trace_pc() in every basic block of a room that was built with
// RING_FUZZ. Without that nothing is ever new, and the driver mutates blindly.

#include <cstddef>

namespace ring::fuzz {

void forget_path();           // before an input
bool reached_anything_new();  // after it: a pair of blocks, or a new order of magnitude of how often one ran
std::size_t pairs_reached();  // by all inputs so far

}  // namespace ring::fuzz
