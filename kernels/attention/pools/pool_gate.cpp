#include "kernels/attention/pools/pool_gate.h"

#include "kernels/rows.h"

namespace ring {

void check(const PoolGate& a) {
  constexpr const char* op = "pool_gate";
  RING_CHECK(a.lse.defined() && a.lse.shape().size() == 2, op, ": lse is ", describe(a.lse),
             ", expected [heads, rows]");
  for (const auto& [name, t] : {std::pair{"lse", &a.lse}, {"pooled_lse", &a.pooled_lse}, {"out", &a.out}}) {
    check_shape(op, name, *t, a.lse.shape());
    RING_CHECK(t->is_contiguous() && t->dtype() == DType::f32, op, ": ", name, " is ", describe(*t),
               ", expected contiguous f32");
  }
  if (!a.dout.defined()) {
    check_shape(op, "gates", a.gates, a.lse.shape());
    RING_CHECK(a.gates.is_contiguous() && a.gates.dtype() == DType::f32, op, ": gates are ", describe(a.gates),
               ", expected contiguous f32");
    return;
  }
  RING_CHECK(a.dout.shape().size() == 3 && a.dout.dim(0) == a.lse.dim(1) && a.dout.dim(1) == a.lse.dim(0), op,
             ": dout is ", describe(a.dout), " for lse ", describe(a.lse));
  check_shape(op, "pooled", a.pooled, a.dout.shape());
  check_shape(op, "attended", a.attended, a.dout.shape());
  RING_CHECK(a.pooled.is_contiguous() && a.pooled.dtype() == DType::f32, op, ": pooled is ", describe(a.pooled),
             ", expected contiguous f32");
  RING_CHECK(a.dout.dtype() == a.attended.dtype(), op, ": dout is ", describe(a.dout), ", attended ",
             describe(a.attended), ", expected one type");
}

void check(const Transpose& a) {
  RING_CHECK(a.x.defined() && a.out.defined() && a.x.shape().size() == 2 && a.x.is_contiguous() &&
                 a.out.is_contiguous() && a.out.shape() == Shape({a.x.dim(1), a.x.dim(0)}),
             "transpose: x is ", describe(a.x), ", out ", describe(a.out));
}

}  // namespace ring
