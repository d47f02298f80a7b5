#pragma once
// Times the GEMMs of a model's linear layers in the type of the settings and in both FP8 modes, with and without
// quantization, and the ops that can quantize their own output.

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/step.h"

namespace ring {

// Scaling modes of FP8 GEMMs: blockwise and tensorwise.
inline constexpr std::array<std::string_view, 2> kFp8Types = {"fp8_blocks", "fp8_tensor"};

// y [N,outputs] = x [N,inputs] w^T.
struct LinearShape {
  std::string name;
  std::int64_t outputs = 0, inputs = 0;
};
// Returns the linear layers of a block.
std::vector<LinearShape> block_linears(const ModelConfig& resolved);

struct ProductTiming {
  std::string work;    // "forward", "input gradient", "weight gradient", the tensor that is quantized, or an op
  std::string type;    // type of the activations, or one of kFp8Types
  std::string kernel;  // e.g. "cublaslt", "own_sm90"
  Cost cost;
  double seconds = 0;  // seconds per call: median over the rounds
};

// Seconds of all three GEMMs with the kernels that a run would use, and seconds to quantize the input, the gradient of
// the output and the weight, each with its transpose.
struct LinearSeconds {
  double products = 0, quantization = 0;
};
struct LinearTiming {
  LinearShape shape;
  std::vector<ProductTiming> rows;
  std::map<std::string, LinearSeconds, std::less<>> seconds;  // seconds of each type
};
// Times all kernels in turn, in `rounds` rounds of `seconds` seconds per kernel.
LinearTiming time_linear(const LinearShape&, std::int64_t tokens, double seconds, int rounds, const ExecContext&);

// An op whose result is read by linear layers, in the forward or the backward.
struct ProducerTiming {
  std::string name;
  int calls = 1;  // number of calls per block, in forward and backward
  std::vector<ProductTiming> rows;
  // Seconds per call with the kernel that a run would use. In FP8, fused: the op quantizes its own result; separate:
  // the op writes the activations' type, and a second kernel quantizes it.
  std::map<std::string, double, std::less<>> fused, separate;  // by type
};
// Times RMSNorm, SwiGLU and the backward of RoPE in a block, if the model has them, in turn like time_linear().
std::vector<ProducerTiming> time_producers(const ModelConfig& resolved, std::int64_t tokens, double seconds, int rounds,
                                           const ExecContext&);

}  // namespace ring
