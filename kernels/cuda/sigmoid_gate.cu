#include "kernels/activation.h"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/map.cuh"

namespace ring::cuda {
namespace {

struct GateValue {
  __device__ float operator()(float x, float gate) const { return x * sigmoid(gate); }
};
struct GateGradient {
  __device__ float operator()(float x, float gate, float dy) const {
    const float s = sigmoid(gate);
    return dy * x * s * (1.0f - s);
  }
};

void run_sigmoid_gate(const SigmoidGate& args, const ExecContext& ctx) {
  check_shape("sigmoid_gate", "gate", args.gate, args.x.shape());
  check_shape("sigmoid_gate", "y", args.y, args.x.shape());
  visit_float("sigmoid_gate", args.y.dtype(), [&]<class T>() {
    const MapInputs<T, 2> in{{device_data<T>(args.x), device_data<T>(args.gate)}};
    launch_map(ctx, GateValue{}, in, device_data<T>(args.y), args.y.numel());
  });
}

void run_sigmoid_gate_backward(const SigmoidGateBackward& args, const ExecContext& ctx) {
  check_shape("sigmoid_gate_backward", "gate", args.gate, args.x.shape());
  check_shape("sigmoid_gate_backward", "dy", args.dy, args.x.shape());
  check_shape("sigmoid_gate_backward", "dgate", args.dgate, args.x.shape());
  visit_float("sigmoid_gate_backward", args.dgate.dtype(), [&]<class T>() {
    const MapInputs<T, 3> in{{device_data<T>(args.x), device_data<T>(args.gate), device_data<T>(args.dy)}};
    launch_map(ctx, GateGradient{}, in, device_data<T>(args.dgate), args.dgate.numel());
  });
}

const bool added_sigmoid_gate[] = {
    sigmoid_gate_kernel.add(Backend::cuda, {"packs", run_sigmoid_gate}),
    sigmoid_gate_backward_kernel.add(Backend::cuda, {"packs", run_sigmoid_gate_backward}),
};

}  // namespace
}  // namespace ring::cuda
