#include "kernels/activation.h"

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kWork = 8;  // cost of one element, in simple elements of 0.2 ns (kPartWork)

struct Gelu {
  static float value(float x) { return x * normal_cdf_fast(x); }
  static float slope(float x) { return gelu_slope_fast(x); }
};

// 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float k = 2 * 0.797884561f;
  static float value(float x) { return x * sigmoid_fast(k * (x + 0.044715f * x * x * x)); }
  static float slope(float x) {
    const float s = sigmoid_fast(k * (x + 0.044715f * x * x * x));
    return s + x * s * (1.0f - s) * k * (1.0f + 3.0f * 0.044715f * x * x);
  }
};

struct Relu2 {
  static float value(float x) { return x < 0 ? 0.0f : x * x; }  // this comparison is false for NaN, which propagates
  static float slope(float x) { return x < 0 ? 0.0f : 2.0f * x; }
};

struct SoftCap {
  float cap, inverse;
  explicit SoftCap(float c) : cap(c), inverse(1 / c) {}
  float value(float x) const { return cap * tanh_fast(x * inverse); }
  float slope(float x) const {
    const float t = tanh_fast(x * inverse);
    return 1 - t * t;
  }
};

// Calls body(f), where f is one of the structs above, so that the activation is known at compile time.
template <class Body>
void dispatch(Activation kind, float cap, const Body& body) {
  switch (kind) {
    case Activation::gelu: return body(Gelu{});
    case Activation::gelu_tanh: return body(GeluTanh{});
    case Activation::relu2: return body(Relu2{});
    case Activation::soft_cap: return body(SoftCap(cap));
  }
}

struct GateGradients {
  float gate, up;
};

struct SiluGate {
  static float value(float gate, float up) { return gate * sigmoid_fast(gate) * up; }
  static GateGradients gradients(float gate, float up, float dy) {
    const float s = sigmoid_fast(gate);
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
  }
};

struct GeluTanhGate {
  static float value(float gate, float up) { return GeluTanh::value(gate) * up; }
  static GateGradients gradients(float gate, float up, float dy) {
    return {dy * up * GeluTanh::slope(gate), dy * GeluTanh::value(gate)};
  }
};

template <class Body>
void dispatch(Gate gate, const Body& body) {
  if (gate == Gate::silu) return body(SiluGate{});
  body(GeluTanhGate{});
}

void run_activate(const Activate& args, const ExecContext& ctx) {
  check_numel("activate", "x", args.x, args.y.numel());
  check_numel("activate", "y", args.y, args.y.numel());
  const float* x = args.x.data<float>();
  float* y = args.y.data<float>();
  dispatch(args.kind, args.cap, [&](auto f) {
    ctx.stream.pool().parallel_for(args.y.numel(), kPartWork / kWork, [=](std::int64_t begin, std::int64_t end, int) {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) y[i] = f.value(x[i]);
    });
  });
}

void run_activate_backward(const ActivateBackward& args, const ExecContext& ctx) {
  check_numel("activate_backward", "x", args.x, args.dx.numel());
  check_numel("activate_backward", "dy", args.dy, args.dx.numel());
  check_numel("activate_backward", "dx", args.dx, args.dx.numel());
  const float *x = args.x.data<float>(), *dy = args.dy.data<float>();
  float* dx = args.dx.data<float>();
  dispatch(args.kind, args.cap, [&](auto f) {
    ctx.stream.pool().parallel_for(args.dx.numel(), kPartWork / kWork, [=](std::int64_t begin, std::int64_t end, int) {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) dx[i] = dy[i] * f.slope(x[i]);
    });
  });
}

void run_swiglu(const SwiGlu& args, const ExecContext& ctx) {
  const Rows in = rows_of("swiglu", "gate_up", args.gate_up), out = rows_of("swiglu", "y", args.y);
  RING_CHECK(in.count == out.count && in.width == 2 * out.width, "swiglu of ", describe(args.gate_up), " into ",
             describe(args.y));
  dispatch(args.gate, [&](auto f) {
    ctx.stream.pool().parallel_for(in.count, row_grain(kWork * out.width), [=](auto begin, auto end, int) {
      for (std::int64_t n = begin; n < end; ++n) {
        const float *gate = in[n], *up = gate + out.width;
        float* y = out[n];
#pragma GCC ivdep
        for (std::int64_t c = 0; c < out.width; ++c) y[c] = decltype(f)::value(gate[c], up[c]);
      }
    });
  });
}

// Computes dgate = dy * up * f'(gate), dup = dy * f(gate).
void run_swiglu_backward(const SwiGluBackward& args, const ExecContext& ctx) {
  const Rows in = rows_of("swiglu_backward", "gate_up", args.gate_up);
  const Rows dy = rows_of("swiglu_backward", "dy", args.dy);
  const Rows out = rows_of("swiglu_backward", "dgate_up", args.dgate_up);
  check_shape("swiglu_backward", "dgate_up", args.dgate_up, args.gate_up.shape());
  RING_CHECK(in.count == dy.count && in.width == 2 * dy.width, "swiglu_backward of ", describe(args.gate_up),
             " with dy ", describe(args.dy));
  dispatch(args.gate, [&](auto f) {
    ctx.stream.pool().parallel_for(in.count, row_grain(kWork * in.width), [=](auto begin, auto end, int) {
      for (std::int64_t n = begin; n < end; ++n) {
        const float *gate = in[n], *up = gate + dy.width, *d = dy[n];
        float *dgate = out[n], *dup = dgate + dy.width;
#pragma GCC ivdep
        for (std::int64_t c = 0; c < dy.width; ++c) {
          const GateGradients g = decltype(f)::gradients(gate[c], up[c], d[c]);
          dgate[c] = g.gate;
          dup[c] = g.up;
        }
      }
    });
  });
}

void run_sigmoid_gate(const SigmoidGate& args, const ExecContext& ctx) {
  check_shape("sigmoid_gate", "gate", args.gate, args.x.shape());
  check_shape("sigmoid_gate", "y", args.y, args.x.shape());
  const float *x = args.x.data<float>(), *gate = args.gate.data<float>();
  float* y = args.y.data<float>();
  ctx.stream.pool().parallel_for(args.y.numel(), kPartWork / kWork, [=](std::int64_t begin, std::int64_t end, int) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] * sigmoid_fast(gate[i]);
  });
}

void run_sigmoid_gate_backward(const SigmoidGateBackward& args, const ExecContext& ctx) {
  check_shape("sigmoid_gate_backward", "gate", args.gate, args.x.shape());
  check_shape("sigmoid_gate_backward", "dy", args.dy, args.x.shape());
  check_shape("sigmoid_gate_backward", "dgate", args.dgate, args.x.shape());
  const float *x = args.x.data<float>(), *gate = args.gate.data<float>(), *dy = args.dy.data<float>();
  float* dgate = args.dgate.data<float>();
  ctx.stream.pool().parallel_for(args.dgate.numel(), kPartWork / kWork, [=](std::int64_t begin, std::int64_t end, int) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
      const float s = sigmoid_fast(gate[i]);
      dgate[i] = dy[i] * x[i] * s * (1.0f - s);
    }
  });
}

const bool added[] = {
    activate_kernel.add(Backend::cpu, {"simd", run_activate}),
    activate_backward_kernel.add(Backend::cpu, {"simd", run_activate_backward}),
    swiglu_kernel.add(Backend::cpu, {"simd", run_swiglu}),
    swiglu_backward_kernel.add(Backend::cpu, {"simd", run_swiglu_backward}),
    sigmoid_gate_kernel.add(Backend::cpu, {"simd", run_sigmoid_gate}),
    sigmoid_gate_backward_kernel.add(Backend::cpu, {"simd", run_sigmoid_gate_backward}),
};

}  // namespace
}  // namespace ring::cpu
