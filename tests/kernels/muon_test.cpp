// Batched products and the kernels of Muon, on the CPU and on a GPU, against float64.
#include "kernels/muon.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/batched_matmul.h"
#include "kernels/tuning.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

// f32 on the CPU; bf16 on a GPU, with a rounding unit of 2^-9 of a number.
struct Where {
  ExecContext ctx;
  DType type;
  double bound;
};
Where on_cpu(int threads) { return {poisoned_context(threads), DType::f32, 2e-6}; }
Where on_gpu() { return {poisoned_device_context({Backend::cuda, 0}), DType::bf16, 4e-3}; }

Values stored_values(const std::string& name, std::int64_t n, DType type, double scale = 1) {
  Values v = random_values(name, n, scale);
  for (double& x : v)
    x = type == DType::bf16 ? static_cast<double>(to_float(to_bf16(static_cast<float>(x))))
                            : static_cast<double>(static_cast<float>(x));
  return v;
}

struct BatchExtents {
  std::int64_t batch, m, n, k;
};

void expect_products(const Where& where, const BatchExtents& e, bool ta, bool tb, bool add) {
  const auto [batch, m, n, k] = e;
  const Values a = stored_values("a", batch * m * k, where.type), b = stored_values("b", batch * k * n, where.type),
               d = stored_values("d", batch * m * n, where.type, std::sqrt(static_cast<double>(k)));
  Values want(d.size());
  for (std::int64_t i = 0; i < batch; ++i)
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t c = 0; c < n; ++c) {
        double sum = 0;
        for (std::int64_t x = 0; x < k; ++x) {
          const std::int64_t at_a = ta ? x * m + r : r * k + x, at_b = tb ? c * k + x : x * n + c;
          sum += a[static_cast<std::size_t>(i * m * k + at_a)] * b[static_cast<std::size_t>(i * k * n + at_b)];
        }
        const auto at = static_cast<std::size_t>((i * m + r) * n + c);
        want[at] = 1.5 * sum + (add ? -0.75 * d[at] : 0.0);
      }
  const auto tensor = [&](std::int64_t rows, std::int64_t columns, const Values& v) {
    return make_tensor({batch, rows, columns}, where.type, v, where.ctx);
  };
  BatchedMatmul p{.a = ta ? tensor(k, m, a) : tensor(m, k, a), .b = tb ? tensor(n, k, b) : tensor(k, n, b)};
  p.c = where.ctx.empty({batch, m, n}, where.type);
  p.transpose_a = ta, p.transpose_b = tb, p.alpha = 1.5f, p.beta = -0.75f;
  if (add) p.add = tensor(m, n, d);
  batched_matmul_kernel(p, where.ctx);
  const Values got = read_values(p.c, where.ctx);
  EXPECT_LT(relative_error(got, want), where.bound) << batch << "x" << m << "x" << n << "x" << k << ta << tb << add;
  batched_matmul_kernel(p, where.ctx);
  EXPECT_EQ(read_values(p.c, where.ctx), got) << "two runs differ";
}

void expect_all_products(const Where& where) {
  for (const BatchExtents& e : {BatchExtents{1, 5, 7, 9}, {3, 16, 8, 24}, {5, 33, 17, 40}, {2, 128, 64, 96}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const bool add : {false, true}) expect_products(where, e, ta, tb, add);
}

TEST(BatchedMatmul, MatchesFloat64) { expect_all_products(on_cpu(2)); }

TEST(BatchedMatmul, WrongShapesAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor a = ctx.zeros({2, 3, 4}), b = ctx.zeros({2, 4, 5}), c = ctx.zeros({2, 3, 5});
  EXPECT_NO_THROW(batched_matmul_kernel({.a = a, .b = b, .c = c}, ctx));
  EXPECT_THROW(batched_matmul_kernel({.a = a, .b = b, .c = c, .transpose_a = true}, ctx), Error);
  EXPECT_THROW(batched_matmul_kernel({.a = a, .b = b, .c = c, .transpose_b = true}, ctx), Error);
  EXPECT_THROW(batched_matmul_kernel({.a = a, .b = b, .c = c, .add = c}, ctx), Error);
  EXPECT_THROW(batched_matmul_kernel({.a = a, .b = b, .c = c, .add = b}, ctx), Error);
  EXPECT_THROW(batched_matmul_kernel({.a = a.narrow(0, 0, 1), .b = b, .c = c}, ctx), Error);
}

void expect_unit_norms(const Where& where) {
  for (const std::int64_t n : {1, 7, 1000, 40001})
    for (const std::int64_t rows : {1, 3}) {
      Values want = stored_values("x", rows * n, where.type, 30);
      const Tensor x = make_tensor({rows, n}, where.type, want, where.ctx);
      unit_norm_kernel({x}, where.ctx);
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += std::pow(want[static_cast<std::size_t>(r * n + i)], 2);
        for (std::int64_t i = 0; i < n; ++i) want[static_cast<std::size_t>(r * n + i)] /= std::sqrt(sum);
      }
      EXPECT_LT(relative_error(read_values(x, where.ctx), want), where.bound) << rows << " rows of " << n;
    }
  const Tensor zeros = where.ctx.zeros({2, 5}, where.type);
  unit_norm_kernel({zeros}, where.ctx);
  EXPECT_EQ(read_values(zeros, where.ctx), Values(10, 0.0));
}

TEST(UnitNorm, DividesEveryRow) { expect_unit_norms(on_cpu(3)); }

// Matrices of `n` elements, some at unaligned addresses.
struct MuonOperands {
  MuonOperands(const Where& where, std::int64_t count, std::int64_t elements, DType stored)
      : n(elements), update(where.ctx.empty({count, elements}, where.type)) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto put = [&](const char* name, DType type) {
        values.push_back(stored_values(str(name, i), n + i % 2, type));
        return make_tensor({n + i % 2}, type, values.back(), where.ctx).narrow(0, i % 2, n);
      };
      matrices.push_back({put("w", stored), put("g", stored), put("m", stored), {}, 8 * i});
      if (where.type == DType::bf16) matrices.back().weights = where.ctx.empty({n}, DType::bf16);
    }
  }
  std::int64_t n;
  Tensor update;
  std::vector<MuonMatrix> matrices;
  std::vector<Values> values;  // w, g, m of each matrix
  Values of(std::size_t matrix, std::size_t which) const {
    const Values& v = values[3 * matrix + which];
    return {v.begin() + static_cast<std::ptrdiff_t>(matrix % 2), v.end()};
  }
};

void expect_elements(const Where& where, std::int64_t count, std::int64_t n, bool nesterov, DType stored) {
  MuonOperands o(where, count, n, stored);
  const double round = stored == DType::bf16 ? 8e-3 : 2e-6;  // stochastic rounding: a whole unit in the last place
  const StepState step{.step = 3, .lr = 0.25f, .decay_scale = 0.5f, .clip = 0.5f};
  MuonMomentum m{.matrices = o.matrices, .update = o.update, .beta = 0.75f, .nesterov = nesterov};
  m.state = state_tensor(step, where.ctx);
  muon_momentum_kernel(m, where.ctx);
  MuonApply a{.matrices = o.matrices, .update = o.update, .state = m.state};
  a.scale = 3, a.weight_decay = 0.5f, a.lr_scale = 2;
  muon_apply_kernel(a, where.ctx);
  const Values updates = read_values(o.update, where.ctx);
  for (std::size_t i = 0; i < o.matrices.size(); ++i) {
    Values w = o.of(i, 0), u = w, momentum = o.of(i, 2);
    const Values g = o.of(i, 1);
    for (std::size_t j = 0; j < w.size(); ++j) {
      momentum[j] = 0.75 * momentum[j] + 0.5 * g[j];
      u[j] = nesterov ? 0.5 * g[j] + 0.75 * momentum[j] : momentum[j];
      w[j] = (1 - 0.5 * 0.5 * 0.5) * w[j] - 0.5 * 3 * updates[i * w.size() + j];
    }
    const Values got(updates.begin() + static_cast<std::ptrdiff_t>(i * w.size()),
                     updates.begin() + static_cast<std::ptrdiff_t>((i + 1) * w.size()));
    EXPECT_LT(relative_error(got, u), where.bound) << "update " << i;
    EXPECT_LT(relative_error(read_values(o.matrices[i].momentum, where.ctx), momentum), round) << "momentum " << i;
    const Values stored_w = read_values(o.matrices[i].values, where.ctx);
    EXPECT_LT(relative_error(stored_w, w), round) << "values " << i;
    if (!o.matrices[i].weights.defined()) continue;
    Values rounded = stored_w;
    for (double& x : rounded) x = static_cast<double>(to_float(to_bf16(static_cast<float>(x))));
    EXPECT_EQ(read_values(o.matrices[i].weights, where.ctx), rounded) << "weights " << i;
  }
}

void expect_nothing_where_a_step_is_refused(const Where& where) {
  const MuonOperands o(where, 3, 100, DType::f32);
  const Tensor state = state_tensor({.lr = 1, .accepted = 0}, where.ctx);
  muon_momentum_kernel({.matrices = o.matrices, .update = o.update, .state = state}, where.ctx);
  muon_apply_kernel({.matrices = o.matrices, .update = o.update, .state = state}, where.ctx);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read_values(o.matrices[i].values, where.ctx), o.of(i, 0));
    EXPECT_EQ(read_values(o.matrices[i].momentum, where.ctx), o.of(i, 2));
  }
}

TEST(MuonElements, MatchFloat64) {
  for (const bool nesterov : {true, false})
    for (const std::int64_t n : {1, 37, 30001}) expect_elements(on_cpu(2), 3, n, nesterov, DType::f32);
  expect_nothing_where_a_step_is_refused(on_cpu(1));
}

class GpuMuonKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuMuonKernels, MatchFloat64) {
  Where where = on_gpu();
  expect_all_products(where);
  where.ctx.tuning = std::make_shared<Tuning>("");
  expect_all_products(where);
  expect_unit_norms(where);
  for (const bool nesterov : {true, false})
    for (const DType stored : {DType::f32, DType::bf16})
      for (const std::int64_t n : {1, 37, 2048, 2049, 30001}) expect_elements(where, 3, n, nesterov, stored);
  expect_elements(where, 150, 2100, true, DType::f32);
  expect_nothing_where_a_step_is_refused(where);
}

}  // namespace
}  // namespace ring::test
