#include "kernels/batched_matmul.h"

namespace ring {

void check(const BatchedMatmul& m) {
  const auto fits = [&](const Tensor& t) {
    return t.shape().size() == 3 && t.is_contiguous() && t.dtype() == m.c.dtype() && t.dim(0) == m.c.dim(0);
  };
  const bool all = fits(m.a) && fits(m.b) && fits(m.c) && (!m.add.defined() || fits(m.add));
  const auto says = [&](const char* what) {
    fail("batched_matmul of ", describe(m.a), m.transpose_a ? "^T" : "", " and ", describe(m.b),
         m.transpose_b ? "^T" : "", " into ", describe(m.c), ": ", what);
  };
  if (!all) says("all must be contiguous [B,.,.] of one type");
  const std::int64_t k = m.a.dim(m.transpose_a ? 1 : 2);
  if (m.a.dim(m.transpose_a ? 2 : 1) != m.c.dim(1) || m.b.dim(m.transpose_b ? 2 : 1) != k ||
      m.b.dim(m.transpose_b ? 1 : 2) != m.c.dim(2))
    says("shapes do not fit");
  if (m.add.defined() && (m.add.shape() != m.c.shape() || m.add.raw() == m.c.raw()))
    says("the added matrix has a different shape, or overlaps the result");
}

}  // namespace ring
