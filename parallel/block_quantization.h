#pragma once
// Quantizes f32 numbers to 8, 4 or 2 bits in blocks of 128 numbers. Each block has a scale that is a power of two. The
// remainder `left` is exact: decoded + left == value, in real numbers, for every finite value. A sender that adds
// `left` to its next message (error feedback) thus loses nothing.
//
// A message holds a scale byte for each block (the exponent + 127), then the codes of all blocks. A code is a signed
// integer in [-L, L]: L = 127, 7 and 1 for 8, 4 and 2 bits; the decoded number is code * scale.
//
// Scales. 8 and 4 bits: the smallest power of two that clips no number of the block. 2 bits: the power of
// two nearest to 1.53 times the mean absolute value, which is the best step of a three-level quantizer for normally
// distributed numbers (1.224 standard deviations, Max 1960); larger numbers are clipped, and error feedback sends the
// rest later.

#include <cstddef>
#include <cstdint>

namespace ring {

inline constexpr std::int64_t kQuantizedBlock = 128;
inline constexpr std::int64_t quantized_blocks(std::int64_t numel) {
  return (numel + kQuantizedBlock - 1) / kQuantizedBlock;
}
// Returns the size in bytes of a message with `numel` numbers. bits: 8, 4 or 2.
std::int64_t quantized_bytes(std::int64_t numel, int bits);

// Writes the blocks [first, end) of the message for `values`, and replaces these values by their remainders. A block
// with a non-finite number keeps its values, and is marked so that it decodes to NaN.
void quantize_blocks(float* values, std::int64_t numel, int bits, std::int64_t first, std::int64_t end,
                     std::byte* message);

// Adds the decoded numbers of one block to `sum`, which has min(128, numel - 128 * block) numbers.
void add_quantized_block(const std::byte* message, std::int64_t numel, int bits, std::int64_t block, float* sum);

}  // namespace ring
