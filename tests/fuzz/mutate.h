#pragma once
// Small changes to bytes that tend to break readers: flipped bits, extreme numbers in binary and in text, moved,
// repeated and missing ranges, and parts of other inputs.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ring::fuzz {

using Random = std::mt19937_64;

// Makes one to eight changes; the result has at most `longest` bytes. `others` must not be empty: parts are taken from
// them.
std::string mutate(std::string input, const std::vector<std::string>& others, std::size_t longest, Random& random);

}  // namespace ring::fuzz
