#include "parallel/compression.h"

#include <algorithm>
#include <cmath>

namespace ring {

std::optional<GradientCoding> coding_of(const ParallelConfig& c) {
  using enum GradientCompression;
  switch (c.compress) {
    case none:
    case automatic: return std::nullopt;
    case bf16: return GradientCoding{GradientCode::bf16, 0};
    case int8: return GradientCoding{GradientCode::int8, 0};
    case fp8: return GradientCoding{GradientCode::fp8, 0};
    case sparse: return GradientCoding{GradientCode::f32, 0};
    case topk: break;
  }
  const double top = std::ceil(c.compress_top * static_cast<double>(kTopBlock));
  return GradientCoding{GradientCode::topk, std::clamp(static_cast<std::int64_t>(top), std::int64_t{1}, kTopBlock)};
}

}  // namespace ring
