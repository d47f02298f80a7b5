#include "kernels/activation.h"

#include "kernels/cuda/device/gelu_tanh.cuh"
#include "kernels/cuda/map.cuh"

namespace ring::cuda {
namespace {

// Normal CDF Phi(x) and its derivative. 0.5 erfc(|x| / sqrt 2) = e^(-x^2 / 2) t p(t), with t = 1 / (1 + 0.3 |x| / sqrt
// 2) and a fitted polynomial p. normcdff would take longer than the memory accesses.
struct Normal {
  float cdf, pdf;
};
__device__ inline Normal normal(float x) {
  const float e = exp2_approx(-0.5f * kLog2E * x * x), t = reciprocal(1.0f + 0.212132034f * fabsf(x));
  float p = -0.0653854385f;
  p = p * t + 0.245967136f;
  p = p * t - 0.263075832f;
  p = p * t + 0.282257121f;
  p = p * t - 0.053491680f;
  p = p * t + 0.110269585f;
  p = p * t + 0.073398011f;
  p = p * t + 0.085474560f;
  p = p * t + 0.084586529f;
  const float tail = e * t * p;
  return {x < 0 ? tail : 1.0f - tail, e * 0.398942280f};
}

struct Gelu {
  static __device__ float value(float x) { return x * normal(x).cdf; }
  static __device__ float slope(float x) {
    const Normal n = normal(x);
    return n.cdf + x * n.pdf;
  }
};

struct Relu2 {
  static __device__ float value(float x) { return x < 0 ? 0.0f : x * x; }  // NaN < 0 is false, so NaN propagates
  static __device__ float slope(float x) { return x < 0 ? 0.0f : 2.0f * x; }
};

struct SoftCap {
  float cap, inverse;
  __device__ float value(float x) const { return cap * tanhf(x * inverse); }
  __device__ float slope(float x) const {
    const float t = tanhf(x * inverse);
    return 1.0f - t * t;
  }
};

template <class F>
struct Value {
  F f;
  __device__ float operator()(float x) const { return f.value(x); }
};
template <class F>
struct Chain {
  F f;
  __device__ float operator()(float x, float dy) const { return dy * f.slope(x); }
};

template <class Body>
void dispatch(Activation kind, float cap, const Body& body) {
  switch (kind) {
    case Activation::gelu: return body(Gelu{});
    case Activation::gelu_tanh: return body(GeluTanh{});
    case Activation::relu2: return body(Relu2{});
    case Activation::soft_cap: return body(SoftCap{cap, 1 / cap});
  }
}

void run_activate(const Activate& args, const ExecContext& ctx) {
  const std::int64_t n = args.y.numel();
  check_numel("activate", "x", args.x, n);
  check_numel("activate", "y", args.y, n);
  visit_float("activate", args.y.dtype(), [&]<class T>() {
    const MapInputs<T, 1> in{{device_data<T>(args.x)}};
    dispatch(args.kind, args.cap,
             [&](auto f) { launch_map(ctx, Value<decltype(f)>{f}, in, device_data<T>(args.y), n); });
  });
}

void run_activate_backward(const ActivateBackward& args, const ExecContext& ctx) {
  const std::int64_t n = args.dx.numel();
  check_numel("activate_backward", "x", args.x, n);
  check_numel("activate_backward", "dy", args.dy, n);
  check_numel("activate_backward", "dx", args.dx, n);
  visit_float("activate_backward", args.dx.dtype(), [&]<class T>() {
    const MapInputs<T, 2> in{{device_data<T>(args.x), device_data<T>(args.dy)}};
    dispatch(args.kind, args.cap,
             [&](auto f) { launch_map(ctx, Chain<decltype(f)>{f}, in, device_data<T>(args.dx), n); });
  });
}

const bool added_activation[] = {
    activate_kernel.add(Backend::cuda, {"packs", run_activate}),
    activate_backward_kernel.add(Backend::cuda, {"packs", run_activate_backward}),
};

}  // namespace
}  // namespace ring::cuda
