#pragma once
// Device views of the operands of the gated delta rule.

#include "kernels/linear_attention/cuda/delta_chunk.cuh"

namespace ring::cuda {

template <class T>
HeadsOf3<T> heads_of3(const Tensor& t) {
  if (!t.defined()) return {};
  return {device_data<std::remove_const_t<T>>(t), t.stride(0), t.stride(1)};
}

template <class T, class Args>
DeltaInputs<T> delta_inputs(const Args& a) {
  return {heads_of3<const T>(a.q),
          heads_of3<const T>(a.k),
          heads_of3<const T>(a.v),
          heads_of3<const float>(a.decay),
          heads_of3<const float>(a.beta),
          static_cast<int>(a.q.dim(1)),
          static_cast<int>(a.v.dim(1)),
          static_cast<int>(a.q.dim(2)),
          static_cast<int>(a.v.dim(2)),
          a.scale,
          a.eps};
}

}  // namespace ring::cuda
