#pragma once
// Attention on a GPU, one candidate on one problem. Beyond AttentionProblem, the layout of operands and the type of
// results vary.

#include <gtest/gtest.h>

#include "tests/kernels/attention_problem.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {

struct GpuProblem {
  std::vector<std::int32_t> offsets;
  std::int64_t heads, kv_heads, dim;
  Pattern pattern = dense();
  DType dtype = DType::bf16;
  bool fused = true;               // q, k, v in one [N,C] tensor, and their gradients in another
  std::int64_t after = 0;          // tokens after the last document
  double size = 1;                 // of q and k
  std::int64_t shift = 0;          // columns before q in the fused tensor
  std::vector<std::int32_t> rows;  // starts of packed rows; empty: each document is a row
  bool wide = false;               // results in f32
  bool deterministic = true;
  OracleDropout dropout = {};
  std::int64_t tokens() const { return offsets.back() + after; }
  std::vector<Span> spans() const { return spans_of(offsets, rows); }
  AttentionProblem problem() const;
  DType results() const { return wide ? DType::f32 : dtype; }
};

std::string text(const GpuProblem&);

Values rounded(Values, DType);
Tensor upload(const Values&, const Shape&, DType, const ExecContext&);
Values download(const Tensor&, const ExecContext&);

AttentionInputs gpu_inputs(const GpuProblem&);

// q, k and v, or their gradients: three tensors, or columns of one.
struct GpuOperands {
  std::int64_t tokens, shift, q_width, k_width;
  Tensor all, parts[3];
  GpuOperands(const GpuProblem&, DType, const ExecContext&);
  std::int64_t width(int i) const { return i == 0 ? q_width : k_width; }
  std::int64_t first(int i) const { return i == 0 ? shift : shift + q_width + (i - 1) * k_width; }
  void write(const AttentionInputs&, const ExecContext&);
  Values read(int i, const ExecContext&) const;
};

template <class Args>
const typename Kernel<Args>::Candidate& candidate(const Kernel<Args>& kernel, const std::string& name) {
  for (const auto& c : kernel.candidates(Backend::cuda))
    if (c.name == name) return c;
  fail("no candidate ", name);
}

template <class Args>
void run_candidate(const Kernel<Args>& kernel, const std::string& name, const Args& args, const ExecContext& ctx) {
  const auto& c = candidate(kernel, name);
  ASSERT_TRUE(!c.supports || c.supports(args, ctx)) << name;
  c.fn(args, ctx);
}

AttentionResults run_gpu(const std::string& name, const GpuProblem&, const AttentionInputs&);
// Runs the candidate in parts: first the queries before token `query_cut`, then the others; each first over the keys
// before `key_cut`, then over the others, with carries from one part to the next.
AttentionResults run_gpu_in_parts(const std::string& name, const GpuProblem&, const AttentionInputs&,
                                  std::int64_t query_cut, std::int64_t key_cut);

void expect_close(const GpuProblem&, const AttentionResults& got, const AttentionResults& want);
void expect_right(const std::vector<std::string>& names, const GpuProblem&);
inline void expect_right(const std::string& name, const GpuProblem& p) { expect_right(std::vector{name}, p); }

// Returns our candidates on tensor cores: the one for all devices, and those for this device that take this problem.
std::vector<std::string> on_tensor_cores(const GpuProblem&);
// Returns all of our own candidates.
std::vector<std::string> own_candidates(const GpuProblem&);

class GpuAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};

}  // namespace ring::test
