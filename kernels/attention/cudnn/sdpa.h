#pragma once
// One call of cuDNN's scaled-dot-product attention, planned for one shape. Sequences of equal length; bf16 but for the
// log-sum-exp. Only sdpa.cpp sees the headers of cuDNN and its frontend, which take long to compile.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ring::cudnn {

// Where element (sequence, token, head) of a tensor starts, in elements; the innermost dim is dense.
struct View {
  std::int64_t sequence = 0, token = 0, head = 0;
  auto operator<=>(const View&) const = default;
};

// Everything that a plan depends on.
struct Problem {
  bool backward = false, causal = false, deterministic = false;
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0;  // queries, keys: of a sequence
  std::int32_t window = 0;                                                          // 0: none
  float scale = 1;
  View q, k, v, out;
  View dout, dq, dk, dv;                            // backward
  std::int64_t stats_sequence = 0, stats_head = 0;  // strides of the log-sum-exp, whose tokens are dense
  auto operator<=>(const Problem&) const = default;
};

struct Operands {
  void *q, *k, *v, *out, *stats;
  void *dout, *dq, *dk, *dv;  // backward
};

class Plan {
 public:
  // handle: cudnnHandle_t, of the device that is current. Error: cuDNN has no plan for this, and why.
  Plan(const Problem&, void* handle);
  ~Plan();
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  void run(const Operands&, void* workspace, void* handle) const;  // on the handle's stream; Error: cuDNN refused

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace ring::cudnn
