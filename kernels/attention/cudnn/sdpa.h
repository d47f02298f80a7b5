#pragma once
// Scaled-dot-product attention of cuDNN, planned for one shape. Sequences have equal length; all tensors are bf16
// except for the log-sum-exp. Only sdpa.cpp includes the headers of cuDNN and its frontend, which take long to compile.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ring::cudnn {

// Strides between sequences, tokens and heads, in elements; the innermost dim is contiguous.
struct View {
  std::int64_t sequence = 0, token = 0, head = 0;
  auto operator<=>(const View&) const = default;
};

// Key of a plan: everything that it depends on.
struct Problem {
  bool backward = false, causal = false, deterministic = false;
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0;  // queries, keys: per sequence
  std::int32_t window = 0;                                                          // 0 if there is none
  float scale = 1;
  View q, k, v, out;
  View dout, dq, dk, dv;                            // used only by the backward
  std::int64_t stats_sequence = 0, stats_head = 0;  // strides of the log-sum-exp; tokens are contiguous
  auto operator<=>(const Problem&) const = default;
};

struct Operands {
  void *q, *k, *v, *out, *stats;
  void *dout, *dq, *dk, *dv;  // used only by the backward
};

class Plan {
 public:
  // handle: cudnnHandle_t of the current device. Throws Error with the reason if cuDNN has no plan for the problem.
  Plan(const Problem&, void* handle);
  ~Plan();
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  // Runs on the handle's stream. Throws Error if cuDNN fails.
  void run(const Operands&, void* workspace, void* handle) const;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace ring::cudnn
