#pragma once
// Measures the matrix products of a model's linear layers in the types that the settings give and in FP8, with and
// without quantization, and the ops that can quantize their own output.

#include <string>
#include <vector>

#include "bench/step.h"

namespace ring {

// y [N,outputs] = x [N,inputs] w^T.
struct LinearShape {
  std::string name;
  std::int64_t outputs = 0, inputs = 0;
};
// The linear layers of a block.
std::vector<LinearShape> block_linears(const ModelConfig& resolved);

struct ProductTiming {
  std::string work;    // "forward", "input gradient", "weight gradient", what is quantized, or an op
  std::string kernel;  // "bf16 cublaslt", "fp8 own_sm90"
  Cost cost;
  double seconds = 0;  // of one call: median of the rounds
};

struct LinearTiming {
  LinearShape shape;
  std::vector<ProductTiming> rows;
  // Seconds of all three products: in the activations' type, in FP8 by the kernels that a run would take, and of
  // quantizing the input, the output's gradient and the weight, each with its transpose.
  double usual = 0, fp8 = 0, quantization = 0;
};
// Measures every kernel in turn, `rounds` times for `seconds` each.
LinearTiming time_linear(const LinearShape&, std::int64_t tokens, double seconds, int rounds, const ExecContext&);

// An op whose result linear layers read, in their forward or backward.
struct ProducerTiming {
  std::string name;
  int calls = 1;  // of a block, forward and backward
  std::vector<ProductTiming> rows;
  // Seconds of a call: with a result in the activations' type, followed by a kernel that quantizes it, and with a
  // result in FP8 by the kernel that a run would take.
  double usual = 0, separate = 0, fused = 0;
};
// Measures the RMSNorm, SwiGLU and backward of RoPE of a block, if the model has them, in turn like time_linear().
std::vector<ProducerTiming> time_producers(const ModelConfig& resolved, std::int64_t tokens, double seconds, int rounds,
                                           const ExecContext&);

}  // namespace ring
