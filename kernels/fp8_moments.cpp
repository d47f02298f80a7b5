#include "kernels/fp8_moments.h"

namespace ring {

void check_fp8_moments(std::string_view op, const Tensor& moments, const Tensor& scales) {
  const bool fp8 = moments.dtype() == DType::u8;
  RING_CHECK(fp8 == scales.defined(), op, ": moments ", describe(moments), fp8 ? " without" : " with", " scales");
  if (!fp8) return;
  RING_CHECK(scales.dtype() == DType::u8 && scales.is_contiguous() && scales.numel() == moment_blocks(moments.numel()),
             op, ": moments ", describe(moments), " with scales ", describe(scales), ", expected one for each ",
             kMomentBlock, " elements");
}

}  // namespace ring
