#include "kernels/muon.h"

#include "kernels/fp8_moments.h"

namespace ring {

std::int64_t check(const char* op, const std::vector<MuonMatrix>& matrices, const Tensor& update) {
  RING_CHECK(!matrices.empty(), op, ": no matrices");
  const std::int64_t n = matrices[0].values.numel();
  const auto fits = [n](const Tensor& t) { return t.is_contiguous() && t.numel() == n; };
  for (const MuonMatrix& m : matrices) {
    RING_CHECK(fits(m.values) && fits(m.gradient) && fits(m.momentum) && (!m.weights.defined() || fits(m.weights)), op,
               ": values ", describe(m.values), ", gradient ", describe(m.gradient), ", momentum ",
               describe(m.momentum), ", expected ", n, " elements of each");
    check_fp8_moments(op, m.momentum, m.momentum_scales);
    RING_CHECK(m.first_element >= 0 && m.first_element % 8 == 0, op, ": first_element is ", m.first_element,
               ", expected a multiple of 8");
  }
  RING_CHECK(update.is_contiguous() && update.numel() == n * std::ssize(matrices), op, ": update ", describe(update),
             " of ", matrices.size(), " matrices of ", n, " elements");
  return n;
}

Cost cost(const MuonMomentum& a) {
  double bytes = bytes_of({a.update});
  for (const MuonMatrix& m : a.matrices)
    bytes += bytes_of({m.gradient, m.momentum, m.momentum, m.momentum_scales, m.momentum_scales});
  return {0, bytes, short_text(a.update)};
}

Cost cost(const MuonApply& a) {
  double bytes = bytes_of({a.update});
  for (const MuonMatrix& m : a.matrices) bytes += bytes_of({m.values, m.values, m.weights});
  return {0, bytes, short_text(a.update)};
}

}  // namespace ring
