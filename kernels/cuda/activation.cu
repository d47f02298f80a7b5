#include "kernels/activation.h"

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Gelu {
  static __device__ float value(float x) { return x * normcdff(x); }
  static __device__ float slope(float x) { return normcdff(x) + x * 0.398942280f * expf(-0.5f * x * x); }
};

// 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float k = 2 * 0.797884561f;
  static __device__ float value(float x) { return x * sigmoid(k * (x + 0.044715f * x * x * x)); }
  static __device__ float slope(float x) {
    const float s = sigmoid(k * (x + 0.044715f * x * x * x));
    return s + x * s * (1.0f - s) * k * (1.0f + 3.0f * 0.044715f * x * x);
  }
};

struct Relu2 {
  static __device__ float value(float x) { return x < 0 ? 0.0f : x * x; }  // NaN is not below 0: it stays
  static __device__ float slope(float x) { return x < 0 ? 0.0f : 2.0f * x; }
};

template <class F>
__global__ void activate_f32(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 4 * thread_x(); i < n; i += 4 * threads_x()) {
    Quad q = load(x, i, n);
    for (float& v : q.v) v = F::value(v);
    store(y, i, n, q);
  }
}

template <class F>
__global__ void activate_backward_f32(const float* x, const float* dy, float* dx, std::int64_t n) {
  for (std::int64_t i = 4 * thread_x(); i < n; i += 4 * threads_x()) {
    const Quad q = load(x, i, n);
    Quad d = load(dy, i, n);
    for (int j = 0; j < 4; ++j) d.v[j] *= F::slope(q.v[j]);
    store(dx, i, n, d);
  }
}

template <class Body>
void dispatch(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::gelu: return body(Gelu{});
    case Activation::gelu_tanh: return body(GeluTanh{});
    case Activation::relu2: return body(Relu2{});
  }
}

void run_activate(const Activate& args, const Context& ctx) {
  const std::int64_t n = args.y.numel();
  check_numel("activate", "x", args.x, n);
  check_numel("activate", "y", args.y, n);
  dispatch(args.kind, [&](auto f) {
    launch(ctx, elements(ctx, n), activate_f32<decltype(f)>, args.x.data<float>(), args.y.data<float>(), n);
  });
}

void run_activate_backward(const ActivateBackward& args, const Context& ctx) {
  const std::int64_t n = args.dx.numel();
  check_numel("activate_backward", "x", args.x, n);
  check_numel("activate_backward", "dy", args.dy, n);
  check_numel("activate_backward", "dx", args.dx, n);
  dispatch(args.kind, [&](auto f) {
    launch(ctx, elements(ctx, n), activate_backward_f32<decltype(f)>, args.x.data<float>(), args.dy.data<float>(),
           args.dx.data<float>(), n);
  });
}

__global__ void swiglu_f32(Rows in, Rows out) {
  const std::int64_t width = out.width;
  for (std::int64_t n = thread_y(); n < out.count; n += threads_y())
    for (std::int64_t c = 4 * thread_x(); c < width; c += 4 * threads_x()) {
      Quad g = load(in[n], c, width);
      const Quad u = load(in[n] + width, c, width);
      for (int j = 0; j < 4; ++j) g.v[j] *= sigmoid(g.v[j]) * u.v[j];
      store(out[n], c, width, g);
    }
}

// With s = sigmoid(g): dgate = dy * up * s * (1 + g (1 - s)), dup = dy * g * s.
__global__ void swiglu_backward_f32(Rows in, Rows dy, Rows out) {
  const std::int64_t width = dy.width;
  for (std::int64_t n = thread_y(); n < dy.count; n += threads_y())
    for (std::int64_t c = 4 * thread_x(); c < width; c += 4 * threads_x()) {
      Quad g = load(in[n], c, width), u = load(in[n] + width, c, width);
      const Quad d = load(dy[n], c, width);
      for (int j = 0; j < 4; ++j) {
        const float s = sigmoid(g.v[j]), dup = d.v[j] * g.v[j] * s;
        g.v[j] = d.v[j] * u.v[j] * s * (1.0f + g.v[j] * (1.0f - s));
        u.v[j] = dup;
      }
      store(out[n], c, width, g);
      store(out[n] + width, c, width, u);
    }
}

void run_swiglu(const SwiGlu& args, const Context& ctx) {
  const Rows in = rows_of("swiglu", "gate_up", args.gate_up), out = rows_of("swiglu", "y", args.y);
  RING_CHECK(in.count == out.count && in.width == 2 * out.width, "swiglu of ", describe(args.gate_up), " into ",
             describe(args.y));
  launch(ctx, rows_by(out.count, divide_up(out.width, 4)), swiglu_f32, in, out);
}

void run_swiglu_backward(const SwiGluBackward& args, const Context& ctx) {
  const Rows in = rows_of("swiglu_backward", "gate_up", args.gate_up);
  const Rows dy = rows_of("swiglu_backward", "dy", args.dy);
  const Rows out = rows_of("swiglu_backward", "dgate_up", args.dgate_up);
  check_shape("swiglu_backward", "dgate_up", args.dgate_up, args.gate_up.shape());
  RING_CHECK(in.count == dy.count && in.width == 2 * dy.width, "swiglu_backward of ", describe(args.gate_up),
             " with dy ", describe(args.dy));
  launch(ctx, rows_by(dy.count, divide_up(dy.width, 4)), swiglu_backward_f32, in, dy, out);
}

const bool added[] = {
    activate_kernel.add(Backend::cuda, {"f32", run_activate}),
    activate_backward_kernel.add(Backend::cuda, {"f32", run_activate_backward}),
    swiglu_kernel.add(Backend::cuda, {"f32", run_swiglu}),
    swiglu_backward_kernel.add(Backend::cuda, {"f32", run_swiglu_backward}),
};

}  // namespace
}  // namespace ring::cuda
