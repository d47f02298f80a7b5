#pragma once
// Measures the matrix products of a model's linear layers in the type that the settings give and in both forms of FP8,
// with and without quantization, and the ops that can quantize their own output.

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/step.h"

namespace ring {

// The scaling modes of FP8 products: blockwise and tensorwise.
inline constexpr std::array<std::string_view, 2> kFp8Types = {"fp8_blocks", "fp8_tensor"};

// y [N,outputs] = x [N,inputs] w^T.
struct LinearShape {
  std::string name;
  std::int64_t outputs = 0, inputs = 0;
};
// The linear layers of a block.
std::vector<LinearShape> block_linears(const ModelConfig& resolved);

struct ProductTiming {
  std::string work;    // "forward", "input gradient", "weight gradient", what is quantized, or an op
  std::string type;    // the activations' type, or one of kFp8Types
  std::string kernel;  // "cublaslt", "own_sm90"
  Cost cost;
  double seconds = 0;  // of one call: median of the rounds
};

// Seconds of all three products, by the kernels that a run would take, and of quantizing the input, the output's
// gradient and the weight, each with its transpose.
struct LinearSeconds {
  double products = 0, quantization = 0;
};
struct LinearTiming {
  LinearShape shape;
  std::vector<ProductTiming> rows;
  std::map<std::string, LinearSeconds, std::less<>> seconds;  // by type
};
// Measures every kernel in turn, `rounds` times for `seconds` each.
LinearTiming time_linear(const LinearShape&, std::int64_t tokens, double seconds, int rounds, const ExecContext&);

// An op whose result linear layers read, in their forward or backward.
struct ProducerTiming {
  std::string name;
  int calls = 1;  // of a block, forward and backward
  std::vector<ProductTiming> rows;
  // Seconds of a call by the kernel that a run would take, and, in FP8, of the op with a result in the activations'
  // type and a kernel that quantizes it.
  std::map<std::string, double, std::less<>> fused, separate;  // by type
};
// Measures the RMSNorm, SwiGLU and backward of RoPE of a block, if the model has them, in turn like time_linear().
std::vector<ProducerTiming> time_producers(const ModelConfig& resolved, std::int64_t tokens, double seconds, int rounds,
                                           const ExecContext&);

}  // namespace ring
