// Linear layers of a sliced model, with threads as ranks, against fp64 sums over all ranks' inputs.

#include <gtest/gtest.h>

#include "tests/autograd/sliced_world.h"
#include "tests/comm/gpu_ranks.h"

namespace ring::test {
namespace {

constexpr double kTolerance = 2e-6;

// Adds a b to c [m,n]; a(i, k) and b(k, j) return elements.
template <class A, class B>
Values product(std::size_t m, std::size_t n, std::size_t k, const A& a, const B& b, Values c = {}) {
  c.resize(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t l = 0; l < k; ++l) c[i * n + j] += a(i, l) * b(l, j);
  return c;
}

Values column_sums(const Values& v, std::size_t columns, Values sum = {}) {
  sum.resize(columns);
  for (std::size_t i = 0; i < v.size(); ++i) sum[i % columns] += v[i];
  return sum;
}

constexpr std::size_t kInner = 10, kOuter = 6;

// Inputs of the two linear layers: those of a rank by its number, those that all ranks hold whole by name.
struct LinearValues {
  std::size_t rows;  // over all ranks
  Values x(int r) const { return random_values(str("x", r), rows * kInner); }
  Values w(int r) const { return random_values(str("w", r), kOuter * kInner); }
  Values d(int r) const { return random_values(str("d", r), rows * kOuter); }
  Values bias = random_values("b", kOuter), residual = random_values("r", rows*kOuter);
};

// Runs the layer with and without a recipe, and the backward twice: gradients of parameters are accumulated.
template <class Layer, class Check>
void check_layer(World& w, const Layer& layer, const Values& d, const Check& check) {
  w.run.saving.recompute = true;
  const Var again = layer();
  w.run.saving.recompute = false;
  const Var y = layer();
  if (again.recipe) RING_CHECK(w.read(Saved(again.recipe).get(w.ctx)) == w.read(y.value), "recomputed, other bits");
  Tape tape;
  w.run.tape = &tape;
  const Var first = layer(), second = layer();
  const Var both = add(w.run, first, second);
  tape.backward(both.slot, make_tensor(y.value.shape(), DType::f32, d, w.ctx), w.ctx);
  w.run.tape = &w.tape;
  check(w.read(y.value));
}

Values twice(Values v) {
  for (double& x : v) x *= 2;
  return v;
}

void check_gather_linear(Communicator& comm, const Stream& stream) {
  for (const std::int64_t own : {5, 6}) {
    World w(comm, stream);
    const std::int64_t rows = own * comm.size();
    const LinearValues of{static_cast<std::size_t>(rows)};
    const Values all = random_values("all", of.rows * kInner), weight = of.w(comm.rank()), d = of.d(comm.rank());
    const Var x = leaf({own, kInner}, rows_of(all, w.rank, w.size), w.ctx);
    const Var wv = leaf({kOuter, kInner}, weight, w.ctx), b = leaf({kOuter}, of.bias, w.ctx);
    const Var r = leaf({rows, kOuter}, of.residual, w.ctx);
    check_layer(
        w, [&] { return gather_linear(w.run, x, wv, b, r); }, d,
        [&](const Values& y) {
          Values want = of.residual;
          for (std::size_t i = 0; i < want.size(); ++i) want[i] += of.bias[i % kOuter];
          want = product(
              of.rows, kOuter, kInner, [&](auto i, auto k) { return all[i * kInner + k]; },
              [&](auto k, auto j) { return weight[j * kInner + k]; }, want);
          expect_close("value", y, want, kTolerance);
          Values dx;
          for (int q = 0; q < comm.size(); ++q)
            dx = product(
                of.rows, kInner, kOuter, [dq = of.d(q)](auto i, auto k) { return dq[i * kOuter + k]; },
                [wq = of.w(q)](auto k, auto j) { return wq[k * kInner + j]; }, dx);
          expect_close("dx", w.read(x.slot->grad), twice(rows_of(dx, w.rank, w.size)), kTolerance);
          const Values dw = product(
              kOuter, kInner, of.rows, [&](auto i, auto k) { return d[k * kOuter + i]; },
              [&](auto k, auto j) { return all[k * kInner + j]; });
          expect_close("dw", w.read(wv.slot->grad), twice(dw), kTolerance);
          expect_close("dbias", w.read(b.slot->grad), twice(column_sums(d, kOuter)), kTolerance);
          expect_close("dresidual", w.read(r.slot->grad), twice(d), kTolerance);
        });
  }
}

void check_linear_scatter(Communicator& comm, const Stream& stream) {
  for (const std::int64_t own : {5, 6}) {
    World w(comm, stream);
    const std::int64_t rows = own * comm.size();
    const LinearValues of{static_cast<std::size_t>(rows)};
    const Values all_d = random_values("all_d", of.rows * kOuter), d = rows_of(all_d, w.rank, w.size);
    const Values weight = of.w(comm.rank()), in = of.x(comm.rank());
    const Var x = leaf({rows, kInner}, in, w.ctx), wv = leaf({kOuter, kInner}, weight, w.ctx);
    const Var b = leaf({kOuter}, of.bias, w.ctx);
    const Var r = leaf({own, kOuter}, rows_of(of.residual, w.rank, w.size), w.ctx);
    check_layer(
        w, [&] { return linear_scatter(w.run, x, wv, b, r); }, d,
        [&](const Values& y) {
          Values want = of.residual;
          for (std::size_t i = 0; i < want.size(); ++i) want[i] += of.bias[i % kOuter];
          for (int q = 0; q < comm.size(); ++q)
            want = product(
                of.rows, kOuter, kInner, [xq = of.x(q)](auto i, auto k) { return xq[i * kInner + k]; },
                [wq = of.w(q)](auto k, auto j) { return wq[j * kInner + k]; }, want);
          expect_close("value", y, rows_of(want, w.rank, w.size), kTolerance);
          const Values dx = product(
              of.rows, kInner, kOuter, [&](auto i, auto k) { return all_d[i * kOuter + k]; },
              [&](auto k, auto j) { return weight[k * kInner + j]; });
          expect_close("dx", w.read(x.slot->grad), twice(dx), kTolerance);
          const Values dw = product(
              kOuter, kInner, of.rows, [&](auto i, auto k) { return all_d[k * kOuter + i]; },
              [&](auto k, auto j) { return in[k * kInner + j]; });
          expect_close("dw", w.read(wv.slot->grad), twice(dw), kTolerance);
          expect_close("dbias", w.read(b.slot->grad), twice(column_sums(d, kOuter)), kTolerance);
          expect_close("dresidual", w.read(r.slot->grad), twice(d), kTolerance);
        });
  }
}

class DistSlicedLinear : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DistSlicedLinear, testing::Values(1, 2, 3, 4));

TEST_P(DistSlicedLinear, GatheredRowsTimesASlice) {
  const auto check = [](Communicator& comm) { check_gather_linear(comm, Stream::cpu(1)); };
  EXPECT_EQ(joined(run_ranks(GetParam(), check)), "");
}

TEST_P(DistSlicedLinear, ProductsOfSlicesScattered) {
  const auto check = [](Communicator& comm) { check_linear_scatter(comm, Stream::cpu(1)); };
  EXPECT_EQ(joined(run_ranks(GetParam(), check)), "");
}

TEST_P(DistSlicedLinear, RefusesOtherShapes) {
  if (GetParam() == 1) GTEST_SKIP() << "for several processes";
  const auto refused = [](const char* text, const std::function<void(World&)>& call) {
    for (const std::string& e : run_ranks(GetParam(), [&](Communicator& comm) {
           World w(comm);
           call(w);
         }))
      EXPECT_NE(e.find(text), std::string::npos) << e;
  };
  refused("the last dims must agree", [](World& w) {
    gather_linear(w.run, leaf({4, 3}, Values(12), w.ctx), leaf({2, 5}, Values(10), w.ctx));
  });
  refused("do not divide among", [](World& w) {
    linear_scatter(w.run, leaf({25, 2}, Values(50), w.ctx), leaf({2, 2}, Values(4), w.ctx));
  });
  refused("residual", [](World& w) {
    const Var x = leaf({12, 2}, Values(24), w.ctx), residual = leaf({12, 2}, Values(24), w.ctx);
    linear_scatter(w.run, x, leaf({2, 2}, Values(4), w.ctx), {}, residual);
  });
}

class GpuDistSlicedLinear : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!nccl_available()) GTEST_SKIP() << "this build has no NCCL";
    if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "needs two GPUs";
  }
  static void expect_all(const GpuRankFn& fn) {
    CommOptions options;
    options.copy_engines = GetParam();
    EXPECT_EQ(joined(run_gpu_ranks(device_count(Backend::cuda), fn, options)), "");
  }
};
INSTANTIATE_TEST_SUITE_P(CopyEngines, GpuDistSlicedLinear, testing::Bool());

TEST_P(GpuDistSlicedLinear, GatheredRowsTimesASlice) { expect_all(check_gather_linear); }
TEST_P(GpuDistSlicedLinear, ProductsOfSlicesScattered) { expect_all(check_linear_scatter); }

// Slow messages and products, repeated without synchronizing in between.
TEST_P(GpuDistSlicedLinear, SameBitsHoweverOften) {
  expect_all([](Communicator& comm, const Stream& stream) {
    World w(comm, stream);
    const std::int64_t own = 2048, wide = 1024, narrow = 768;
    const auto random = [&](const char* name, const Shape& shape) {
      return leaf(shape, random_values(str(name, comm.rank()), static_cast<std::size_t>(shape.numel())), w.ctx);
    };
    const Var x = random("x", {own, wide}), a = random("a", {narrow, wide}), b = random("b", {wide, narrow});
    const Tensor d = random("d", {own, wide}).value;
    std::vector<Tensor> kept;
    constexpr std::size_t kTimes = 6;
    for (std::size_t i = 0; i < kTimes; ++i) {
      Tape tape;
      w.run.tape = &tape;
      for (const Var& v : {x, a, b}) *v.slot = GradSlot{};
      const Var y = linear_scatter(w.run, gather_linear(w.run, x, a), b, {}, x);
      tape.backward(y.slot, d, w.ctx);
      for (const Tensor& t : {y.value, x.slot->grad, a.slot->grad, b.slot->grad}) kept.push_back(t);
    }
    w.run.tape = &w.tape;
    for (std::size_t i = 4; i < kept.size(); ++i)
      RING_CHECK(w.read(kept[i]) == w.read(kept[i % 4]), "time ", i / 4, ", tensor ", i % 4, ": other bits");
  });
}

}  // namespace
}  // namespace ring::test
