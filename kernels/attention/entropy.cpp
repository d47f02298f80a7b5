#include "kernels/attention/entropy.h"

#include "kernels/rows.h"

namespace ring {

void check(const AttentionEntropy& a) {
  RING_CHECK(a.q.defined() && a.q.shape().size() == 3, "attention_entropy: q is ", describe(a.q), ", expected [N,H,D]");
  const std::int64_t n = a.q.dim(0), heads = a.q.dim(1);
  check_shape("attention_entropy", "keys", a.keys, a.q.shape());
  check_shape("attention_entropy", "lse", a.lse, {heads, n});
  check_shape("attention_entropy", "out", a.out, {n, 2 * heads});
  for (const Tensor* t : {&a.keys, &a.lse, &a.out})
    RING_CHECK(t->is_contiguous(), "attention_entropy: ", describe(*t), " is not contiguous");
}

}  // namespace ring
