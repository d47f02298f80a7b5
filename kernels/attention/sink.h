#pragma once
#include "kernels/kernel.h"

namespace ring {

// Learned attention sinks (gpt-oss): the softmax of a query head h has one more logit, sinks[h], whose probability is
// dropped. The result is computed from that of attention without sinks, so no attention kernel has to support them:
//   out <- out * sigmoid(lse - sinks[h]),   lse <- log(exp(lse) + exp(sinks[h]))
//   out    [N,Hq,D], f32 or bf16, any strides with unit last dim
//   lse    [Hq,N] f32, contiguous; -inf for a query without keys, whose out stays 0
//   sinks  [Hq], of out's type
// With these out and lse, AttentionBackward computes the gradients of q, k and v.
struct AttentionSink {
  Tensor out, lse, sinks;
};
inline Cost cost(const AttentionSink& a) { return cost_of(a.out, {a.out, a.out, a.lse, a.lse, a.sinks}); }
inline constinit Kernel<AttentionSink> attention_sink_kernel{"attention_sink"};

// Computes terms [N,Hq] f32, contiguous, whose sum over N is the gradient of sinks:
//   terms[n,h] = -exp(sinks[h] - lse[h,n]) * sum over d of dout[n,h,d] out[n,h,d]
// out, lse: as AttentionSink leaves them. dout has out's shape and type.
struct AttentionSinkBackward {
  Tensor out, lse, sinks, dout, terms;
};
inline Cost cost(const AttentionSinkBackward& a) { return cost_of(a.out, {a.out, a.dout, a.lse, a.sinks, a.terms}); }
inline constinit Kernel<AttentionSinkBackward> attention_sink_backward_kernel{"attention_sink_backward"};

// --- for kernels ---

// Throws Error, naming the tensor, if shapes or types do not fit. Each kernel calls it first.
void check(const AttentionSink&);
void check(const AttentionSinkBackward&);

}  // namespace ring
