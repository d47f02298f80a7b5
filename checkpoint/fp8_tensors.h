#pragma once
// Optimizer states in FP8 (kernels/fp8_moments.h) in a State and in checkpoints: a u8 tensor of codes with the shape of
// the parameter, and the scales of its blocks in a tensor named "<name>:e4m3_scales" or "<name>:e4m4_scales".
//
// The scales are sharded like the codes: [R,C] has scales [R,C/16] if C is a multiple of 16. Other tensors have one
// list of scales, for blocks that may continue in the next row.

#include <optional>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/state.h"
#include "kernels/fp8_moments.h"

namespace ring {

std::string scales_name(const std::string& codes, Fp8Moment form);

// The codes to which a tensor of scales belongs.
struct ScalesOwner {
  std::string codes;
  Fp8Moment form;
};
std::optional<ScalesOwner> owner_of_scales(const std::string& name);  // nullopt for other names

Shape scales_shape(const Shape& codes);

// Returns true if the region splits no block of the tensor [whole]: each of its rows, or all of it, is whole blocks.
bool is_made_of_blocks(const Shape& whole, const Shape& start, const Shape& size);
// Returns the scales of `codes`, a region made of blocks. scales: those of the local codes, [moment_blocks(numel)].
StateTensor scales_of(const StateTensor& codes, Fp8Moment form, const Tensor& scales);

// Converts n elements that begin at a block, rounding to nearest.
void quantize(const float* values, std::int64_t n, Fp8Moment form, std::uint8_t* codes, std::uint8_t* scales);

// The rows [first, first + count) of scales that a region of codes needs, and the block that the first scale belongs
// to.
struct ScalesRegion {
  Region region;
  std::int64_t first_block = 0;
};
ScalesRegion scales_region(const Shape& whole, const Region& codes);
// codes: the region's; scales: those of scales_region(). values receives the region's elements.
void dequantize(const Shape& whole, const Region&, Fp8Moment form, const std::uint8_t* codes,
                const std::uint8_t* scales, float* values);

}  // namespace ring
