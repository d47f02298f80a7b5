#include "kernels/attention/sink.h"

#include "kernels/rows.h"

namespace ring {
namespace {

template <class Args>
void check_sink_operands(const char* op, const Args& a) {
  RING_CHECK(a.out.defined() && a.out.shape().size() == 3, op, ": out is ", describe(a.out), ", expected [N,H,D]");
  const std::int64_t n = a.out.dim(0), heads = a.out.dim(1);
  check_shape(op, "lse", a.lse, {heads, n});
  check_shape(op, "sinks", a.sinks, {heads});
  RING_CHECK(a.sinks.dtype() == a.out.dtype(), op, ": sinks are ", describe(a.sinks), " for out ", describe(a.out));
  for (const Tensor* t : {&a.lse, &a.sinks}) RING_CHECK(t->is_contiguous(), op, ": ", describe(*t), " has strides");
}

}  // namespace

void check(const AttentionSink& a) { check_sink_operands("attention_sink", a); }

void check(const AttentionSinkBackward& a) {
  constexpr const char* op = "attention_sink_backward";
  check_sink_operands(op, a);
  check_shape(op, "dout", a.dout, a.out.shape());
  check_shape(op, "terms", a.terms, {a.out.dim(0), a.out.dim(1)});
  RING_CHECK(a.dout.dtype() == a.out.dtype(), op, ": dout is ", describe(a.dout), " for out ", describe(a.out));
  RING_CHECK(a.terms.is_contiguous(), op, ": ", describe(a.terms), " has strides");
}

}  // namespace ring
