// CUDA cross-entropy, embedding, optimizer and column sums in f32 and bf16 against references in f64, from inputs
// rounded to the tested type: odd sizes, strides and addresses, skewed and bad ids, stochastic rounding, determinism.

#include <cmath>
#include <cstring>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/optimizer.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/step_state_tensor.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16};

ExecContext gpu() { return poisoned_device_context({Backend::cuda, 0}); }

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }
};
class GpuCrossEntropy : public GpuTest {};
class GpuEmbedding : public GpuTest {};
class GpuColumnSum : public GpuTest {};
class GpuOptimizer : public GpuTest {};

double stored(double x, DType t) {
  const auto f = static_cast<float>(x);
  return t == DType::bf16 ? to_float(to_bf16(f)) : f;
}
Values random_stored(const std::string& name, std::int64_t n, DType t, double scale = 1) {
  Values v = random_values(name, n, scale);
  for (double& x : v) x = stored(x, t);
  return v;
}

Values slice(const Values& v, std::int64_t begin, std::int64_t count) {
  return {v.begin() + begin, v.begin() + begin + count};
}

// ---------------------------------------------------------------------------------------------------- cross-entropy

// Logits are columns [left, left + width) of a tensor that is two columns wider still.
struct LossCase {
  std::int64_t rows, width, vocab, left;
  std::int64_t stride() const { return left + width + 2; }
};
struct LossValues {
  Values wide, loss, gradient;  // gradient: the whole wide tensor
};
constexpr float kScale = 0.5f, kZLoss = 1e-3f, kLossScale = 3.0f;

double target_of(const LossCase& c, std::int64_t row) {
  const std::int64_t choices[] = {0, c.vocab - 1, kIgnoreTarget, c.vocab / 2, c.vocab / 3};
  return static_cast<double>(choices[row % 5]);
}
Values targets_of(const LossCase& c) {
  Values v;
  for (std::int64_t r = 0; r < c.rows; ++r) v.push_back(target_of(c, r));
  return v;
}

void oracle_row(const LossCase& c, std::int64_t target, double weight, double* x, double* loss) {
  *loss = 0;
  if (target == kIgnoreTarget) return std::fill(x, x + c.width, 0.0);
  double max = x[0], sum = 0;
  for (std::int64_t v = 0; v < c.vocab; ++v) max = std::max(max, x[v]);
  for (std::int64_t v = 0; v < c.vocab; ++v) sum += std::exp(x[v] - max);
  const double lse = max + std::log(sum), scale = weight * kScale * kLossScale;
  *loss = weight * (lse - x[target] + kZLoss * lse * lse);
  for (std::int64_t v = 0; v < c.vocab; ++v) x[v] = scale * (1 + 2 * kZLoss * lse) * std::exp(x[v] - lse);
  x[target] -= scale;
  std::fill(x + c.vocab, x + c.width, 0.0);
}

LossValues loss_oracle(const LossCase& c, DType t, const Values& weights) {
  LossValues out;
  out.wide = random_stored("logits", c.rows * c.stride(), t, 6);
  out.gradient = out.wide;
  out.loss.resize(static_cast<std::size_t>(c.rows));
  for (std::int64_t r = 0; r < c.rows; ++r)
    oracle_row(c, static_cast<std::int64_t>(target_of(c, r)), weights[static_cast<std::size_t>(r)],
               out.gradient.data() + r * c.stride() + c.left, &out.loss[static_cast<std::size_t>(r)]);
  return out;
}

LossValues run_loss(const LossCase& c, DType t, const Values& weights, const Values& targets, bool gradient = true) {
  const ExecContext ctx = gpu();
  LossValues out{.wide = random_stored("logits", c.rows * c.stride(), t, 6)};
  const Tensor wide = make_tensor({c.rows, c.stride()}, t, out.wide, ctx), loss = ctx.empty({c.rows});
  cross_entropy_kernel({.logits = wide.narrow(1, c.left, c.width),
                        .targets = make_tensor({c.rows}, DType::i32, targets, ctx),
                        .weights = make_tensor({c.rows}, DType::f32, weights, ctx),
                        .loss = loss,
                        .vocab = c.vocab,
                        .scale = kScale,
                        .z_loss = kZLoss,
                        .gradient = gradient,
                        .state = state_tensor({.loss_scale = kLossScale}, ctx)},
                       ctx);
  out.loss = read_values(loss, ctx);
  out.gradient = read_values(wide, ctx);
  return out;
}

// Returns the gradient without the target elements. Targets outweigh all other elements, so both are compared.
Values without_targets(const LossCase& c, Values gradient) {
  for (std::int64_t r = 0; r < c.rows; ++r)
    if (target_of(c, r) >= 0)
      gradient[static_cast<std::size_t>(r * c.stride() + c.left + static_cast<std::int64_t>(target_of(c, r)))] = 0;
  return gradient;
}
// Returns the logits' part of the tensor. Elements around it must stay bit-identical.
Values inside(const LossCase& c, const Values& wide) {
  Values v;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const Values row = slice(wide, r * c.stride() + c.left, c.width);
    v.insert(v.end(), row.begin(), row.end());
  }
  return v;
}
Values around(const LossCase& c, Values wide) {
  for (std::int64_t r = 0; r < c.rows; ++r) std::fill_n(wide.begin() + r * c.stride() + c.left, c.width, 0.0);
  return wide;
}

TEST_F(GpuCrossEntropy, MatchesTheOracle) {
  const LossCase cases[] = {{5, 2, 2, 0},          {6, 37, 37, 0},         {6, 64, 50, 6},        {7, 1000, 999, 3},
                            {5, 6144, 6100, 6},    {5, 32000, 31999, 6},   {4, 50304, 50257, 6},  {4, 50257, 50257, 0},
                            {2, 65536, 65536, 14}, {2, 151936, 151936, 6}, {3, 151936, 151800, 5}};
  for (DType t : kFloats)
    for (const LossCase& c : cases) {
      SCOPED_TRACE(str(t, " rows ", c.rows, " width ", c.width, " vocab ", c.vocab, " left ", c.left));
      Values weights = random_stored("weights", c.rows, DType::f32);
      for (double& w : weights) w = stored(1 + 0.5 * w, DType::f32);
      const LossValues want = loss_oracle(c, t, weights), got = run_loss(c, t, weights, targets_of(c));
      EXPECT_TRUE(close(got.loss, want.loss, 1e-5));
      EXPECT_TRUE(close(inside(c, got.gradient), inside(c, want.gradient), tolerance(t)));
      EXPECT_TRUE(close(inside(c, without_targets(c, got.gradient)), inside(c, without_targets(c, want.gradient)),
                        tolerance(t)));
      EXPECT_EQ(around(c, got.gradient), around(c, want.gradient));
      EXPECT_EQ(got.gradient, run_loss(c, t, weights, targets_of(c)).gradient) << "another time, other bits";
      const LossValues alone = run_loss(c, t, weights, targets_of(c), false);
      EXPECT_EQ(alone.loss, got.loss);
      EXPECT_EQ(alone.gradient, alone.wide) << "logits written without being asked for";
    }
}

TEST_F(GpuCrossEntropy, NoRows) {
  const LossCase c{0, 64, 64, 6};
  EXPECT_TRUE(run_loss(c, DType::bf16, {}, {}).loss.empty());
}

TEST_F(GpuCrossEntropy, ABadTargetGivesNaN) {
  const LossCase c{5, 520, 500, 6};
  for (DType t : kFloats) {
    const LossValues got = run_loss(c, t, Values(5, 1.0), {0, -1, 500, 7, 519});
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const bool bad = r == 1 || r == 2 || r == 4;
      EXPECT_EQ(std::isnan(got.loss[static_cast<std::size_t>(r)]), bad) << r;
      for (std::int64_t v = 0; v < c.width; ++v) {
        const double g = got.gradient[static_cast<std::size_t>(r * c.stride() + c.left + v)];
        if (v < c.vocab)
          ASSERT_EQ(std::isnan(g), bad) << r << ' ' << v;
        else
          ASSERT_EQ(g, 0) << r << ' ' << v;
      }
    }
  }
}

TEST_F(GpuCrossEntropy, InfinitePaddingHugeAndMissingLogits) {
  const ExecContext ctx = gpu();
  const double inf = INFINITY, nan = NAN;
  const Tensor logits =
      make_tensor({4, 5}, DType::f32,
                  {3e38, -3e38, 0, inf, nan, -inf, -inf, 2, inf, nan, 1, nan, 1, 0, 0, -inf, -inf, -inf, 0, 0}, ctx);
  const Tensor loss = ctx.empty({4});
  cross_entropy_kernel(
      {.logits = logits, .targets = make_tensor({4}, DType::i32, {0, 2, 0, 0}, ctx), .loss = loss, .vocab = 3}, ctx);
  const Values l = read_values(loss, ctx), g = read_values(logits, ctx);
  EXPECT_EQ(slice(l, 0, 2), (Values{0, 0}));
  EXPECT_EQ(slice(g, 0, 10), Values(10, 0.0));
  EXPECT_TRUE(std::isnan(l[2])) << "a NaN among the logits";
  EXPECT_TRUE(std::isnan(l[3])) << "nothing but -inf";
}

// -------------------------------------------------------------------------------------------------------- embedding

TEST_F(GpuEmbedding, CopiesOrAddsRows) {
  for (DType t : kFloats)
    for (std::int64_t width : {1, 6, 64, 768, 1601, 5000})
      for (std::int64_t tokens : {0, 1, 77, 3001})
        for (bool add : {false, true}) {
          SCOPED_TRACE(str(t, " width ", width, " tokens ", tokens, add ? " add" : ""));
          const ExecContext ctx = gpu();
          const std::int64_t rows = 50;
          const Values table = random_stored("table", rows * width, t), old = random_stored("old", tokens * width, t);
          Values ids = random_values("ids", tokens, 25), want = old;
          for (double& id : ids) id = std::floor(id + 25);
          if (tokens > 7) ids[3] = -1, ids[5] = 50, ids[6] = -2147483648.0;
          for (std::int64_t i = 0; i < tokens * width; ++i) {
            const double id = ids[static_cast<std::size_t>(i / width)];
            const bool known = id >= 0 && id < 50;
            const double row =
                known ? table[static_cast<std::size_t>(static_cast<std::int64_t>(id) * width + i % width)] : 0;
            want[static_cast<std::size_t>(i)] =
                known ? stored((add ? old[static_cast<std::size_t>(i)] : 0) + row, t) : 1e30;
          }
          const Tensor out = add ? make_tensor({tokens, width}, t, old, ctx) : ctx.empty({tokens, width}, t);
          embedding_kernel({.ids = make_tensor({tokens}, DType::i32, ids, ctx),
                            .table = make_tensor({rows, width}, t, table, ctx),
                            .out = out,
                            .add = add},
                           ctx);
          Values got = read_values(out, ctx);
          for (double& x : got)
            if (std::isnan(x)) x = 1e30;
          EXPECT_EQ(got, want);
        }
}

// Half of all ids are equal; some are invalid.
Values skewed_ids(std::int64_t tokens, std::int64_t rows) {
  Values ids = random_values("skew", tokens), other = random_values("other", tokens, static_cast<double>(rows) / 2);
  for (std::size_t n = 0; n < ids.size(); ++n)
    ids[n] = ids[n] < 0 ? 3 : std::floor(other[n] + static_cast<double>(rows) / 2);
  for (std::size_t n = 5; n < ids.size(); n += 97) ids[n] = n % 2 ? -1 : static_cast<double>(rows);
  return ids;
}

void check_backward(DType from, DType to, std::int64_t tokens, std::int64_t width, float beta) {
  const std::int64_t rows = 70;
  const Values ids = skewed_ids(tokens, rows), dout = random_stored("dout", tokens * width, from),
               old = random_stored("old", rows * width, to);
  Values want(old.size(), 0.0);
  for (std::int64_t n = 0; n < tokens; ++n) {
    const double id = ids[static_cast<std::size_t>(n)];
    if (id < 0 || id >= static_cast<double>(rows)) continue;
    for (std::int64_t c = 0; c < width; ++c)
      want[static_cast<std::size_t>(static_cast<std::int64_t>(id) * width + c)] +=
          dout[static_cast<std::size_t>(n * width + c)];
  }
  for (std::size_t i = 0; beta != 0 && i < want.size(); ++i) want[i] += static_cast<double>(beta) * old[i];
  auto run = [&] {
    const ExecContext ctx = gpu();
    const Tensor dtable = beta == 0 ? ctx.empty({rows, width}, to) : make_tensor({rows, width}, to, old, ctx);
    embedding_backward_kernel({.ids = make_tensor({tokens}, DType::i32, ids, ctx),
                               .dout = make_tensor({tokens, width}, from, dout, ctx),
                               .dtable = dtable,
                               .beta = beta},
                              ctx);
    return read_values(dtable, ctx);
  };
  const Values got = run();
  if (tokens == 0 && beta == 0)
    EXPECT_EQ(got, want);
  else
    EXPECT_TRUE(close(got, want, tolerance(to)));
  EXPECT_EQ(run(), got) << "another time, other bits";
}

TEST_F(GpuEmbedding, BackwardSumsRowsOfSkewedIds) {
  for (DType from : kFloats)
    for (DType to : kFloats)
      for (std::int64_t width : {5, 64, 776, 4104})
        for (std::int64_t tokens : {0, 1, 31, 32, 33, 1000, 9001}) {
          if (width > 1000 && tokens > 1000) continue;
          for (float beta : {0.0f, 1.0f, 0.5f}) {
            SCOPED_TRACE(str(from, " into ", to, " width ", width, " tokens ", tokens, " beta ", beta));
            check_backward(from, to, tokens, width, beta);
          }
        }
}

// ------------------------------------------------------------------------------------------------------ column sums

void check_column_sum(DType from, DType to, const Shape& shape, std::int64_t left, float beta) {
  const std::int64_t rows = shape[0], width = shape[1], stride = width + left;
  const Values wide = random_stored("x", rows * stride, from), old = random_stored("old", width, to);
  Values want(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t c = 0; c < width; ++c)
      want[static_cast<std::size_t>(c)] += wide[static_cast<std::size_t>(i * stride + left + c)];
  for (std::size_t c = 0; beta != 0 && c < want.size(); ++c) want[c] += static_cast<double>(beta) * old[c];
  auto run = [&] {
    const ExecContext ctx = gpu();
    const Tensor x = make_tensor({rows, stride}, from, wide, ctx).narrow(1, left, width);
    const Tensor out = beta == 0 ? ctx.empty({width}, to) : make_tensor({width}, to, old, ctx);
    column_sum_kernel({.x = x, .out = out, .beta = beta}, ctx);
    return read_values(out, ctx);
  };
  const Values got = run();
  if (rows == 0 && beta == 0)
    EXPECT_EQ(got, want);
  else
    EXPECT_TRUE(close(got, want, std::max(tolerance(to), 2e-5)));
  EXPECT_EQ(run(), got) << "another time, other bits";
}

TEST_F(GpuColumnSum, MatchesTheOracle) {
  const Shape shapes[] = {{0, 8}, {1, 1}, {65536, 1}, {1000, 7}, {333, 2304}, {16384, 96}, {300, 11264}, {5000, 257}};
  for (DType from : kFloats)
    for (DType to : kFloats)
      for (const Shape& shape : shapes)
        for (std::int64_t left : {0, 3, 8})
          for (float beta : {0.0f, 0.5f}) {
            SCOPED_TRACE(str(from, " into ", to, ' ', shape, " left ", left, " beta ", beta));
            check_column_sum(from, to, shape, left, beta);
          }
}

// -------------------------------------------------------------------------------------------------------- optimizer

TEST_F(GpuOptimizer, SquaredNorms) {
  for (DType t : kFloats)
    for (std::int64_t n : {0, 1, 7, 4099, 3000001})
      for (std::int64_t left : {0, 1}) {
        SCOPED_TRACE(str(t, ' ', n, " elements from ", left));
        const Values x = random_stored("x", n + left, t, 3);
        double want = 2.5;
        for (std::size_t i = static_cast<std::size_t>(left); i < x.size(); ++i) want += x[i] * x[i];
        auto run = [&] {
          const ExecContext ctx = gpu();
          const Tensor state = state_tensor({.squared_norm = 2.5f}, ctx);
          squared_norm_kernel(
              {.x = make_tensor({n + left}, t, x, ctx).narrow(0, left, n), .sum = squared_norm_of(state)}, ctx);
          return read_state(state, ctx).squared_norm;
        };
        const float got = run();
        EXPECT_NEAR(got, want, 1e-6 * want);
        EXPECT_EQ(run(), got);
      }
}

TEST_F(GpuOptimizer, StepsAreJudgedByNormAndLoss) {
  const ExecContext ctx = gpu();
  auto judge = [&](StepState s, float loss, float max_norm) {
    const Tensor state = state_tensor(s, ctx);
    check_and_clip_kernel({.state = state, .max_norm = max_norm, .loss = from_host<float>({loss}, ctx.stream)}, ctx);
    return read_state(state, ctx);
  };
  StepState s = judge({.squared_norm = 16}, 3.5f, 1);
  EXPECT_EQ(s.clip, 0.25f);
  EXPECT_EQ(s.loss, 3.5f);
  EXPECT_TRUE(s.accepted == 1 && s.halted == 0);
  EXPECT_EQ(judge({.squared_norm = 16}, 3.5f, 0).clip, 1.0f);
  EXPECT_EQ(judge({.squared_norm = 0}, 0, 1).clip, 1.0f);
  for (const auto& [norm, loss] : {std::pair{NAN, 1.0f}, {INFINITY, 1.0f}, {1.0f, NAN}, {1.0f, -INFINITY}}) {
    s = judge({.squared_norm = norm}, loss, 1);
    EXPECT_TRUE(s.accepted == 0 && s.halted == 1) << norm << ' ' << loss;
  }
  EXPECT_EQ(judge({.norm_limit = 4, .squared_norm = 16}, 0, 0).accepted, 1u);
  EXPECT_EQ(judge({.norm_limit = 3.9f, .squared_norm = 16}, 0, 0).accepted, 0u);
  EXPECT_EQ(judge({.loss_scale = 0.5f, .loss_limit = 3}, 6, 0).accepted, 1u);
  EXPECT_EQ(judge({.loss_scale = 0.5f, .loss_limit = 3}, 6.1f, 0).accepted, 0u);
  s = judge({.squared_norm = 1, .halted = 1}, 1, 1);
  EXPECT_TRUE(s.accepted == 0 && s.halted == 1) << "a good step after a bad one";
  const Tensor state = state_tensor({.squared_norm = 1, .loss = 9}, ctx);
  check_and_clip_kernel({.state = state}, ctx);
  EXPECT_EQ(read_state(state, ctx).loss, 0) << "no loss given";
}

// The flag is read when the kernel runs, also in a CUDA graph.
TEST_F(GpuOptimizer, StepsAfterALostPeerAreRejected) {
  const ExecContext ctx = gpu();
  const auto flag = std::static_pointer_cast<std::uint32_t>(ctx.stream.impl().host_buffer(sizeof(std::uint32_t)));
  *flag = 0;
  const Tensor state = state_tensor({.loss_scale = 0.5f, .squared_norm = 1}, ctx);
  const auto recorded =
      ctx.stream.impl().record_work([&] { check_and_clip_kernel({.state = state, .peer_lost = flag.get()}, ctx); });
  const auto replay = [&] {
    recorded->launch();
    return read_state(state, ctx);
  };
  EXPECT_EQ(replay().accepted, 1u);
  *flag = 1;
  const StepState s = replay();
  EXPECT_TRUE(s.accepted == 0 && s.halted == 1 && s.peer_lost == 1);
  *flag = 0;
  EXPECT_EQ(replay().accepted, 0u);
  const Tensor logits = from_host<float>({1, 2, 3, 4}, ctx.stream).view({1, 4});
  cross_entropy_kernel({.logits = logits,
                        .targets = from_host<std::int32_t>({2}, ctx.stream),
                        .loss = from_host<float>({0}, ctx.stream),
                        .vocab = 4,
                        .state = state},
                       ctx);
  for (const float g : to_host<float>(logits, ctx.stream)) EXPECT_TRUE(std::isnan(g));
}

struct Types {
  DType param, grad, moments;
};
struct Adam {
  Values param, grad, m, v;
  Values weights;  // of results
};
const AdamW kSettings{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .lr_scale = 0.5f};
constexpr StepState kStep{.step = 4, .lr = 0.02f, .decay_scale = 3, .clip = 0.7f};

Adam adam_inputs(std::int64_t n, const Types& t) {
  Adam a{random_stored("param", n, t.param),
         random_stored("grad", n, t.grad),
         random_stored("m", n, t.moments, 0.1),
         random_stored("v", n, t.moments, 0.1),
         {}};
  for (double& v : a.v) v = std::abs(v) + stored(1e-3, t.moments);
  for (double& v : a.v) v = stored(v, t.moments);
  return a;
}

Adam adam_oracle(Adam a) {
  const double b1 = kSettings.beta1, b2 = kSettings.beta2, t = kStep.step + 1;
  const double lr = static_cast<double>(kStep.lr) * kSettings.lr_scale;
  for (std::size_t i = 0; i < a.param.size(); ++i) {
    const double g = a.grad[i] * kStep.clip;
    a.m[i] = b1 * a.m[i] + (1 - b1) * g;
    a.v[i] = b2 * a.v[i] + (1 - b2) * g * g;
    const double m = a.m[i] / (1 - std::pow(b1, t)), v = a.v[i] / (1 - std::pow(b2, t));
    a.param[i] =
        (1 - lr * kSettings.weight_decay * kStep.decay_scale) * a.param[i] - lr * m / (std::sqrt(v) + kSettings.eps);
  }
  return a;
}

struct Grid {
  std::int64_t left = 0;   // elements before the first one: makes addresses unaligned
  std::int64_t first = 0;  // global number of the first element
  StepState state = kStep;
};

Adam run_adam(const Adam& in, const Types& t, const Grid& place = {}) {
  const ExecContext ctx = gpu();
  const auto n = static_cast<std::int64_t>(in.param.size());
  auto put = [&](const Values& v, DType type) {
    Values all(static_cast<std::size_t>(place.left), 0.0);
    all.insert(all.end(), v.begin(), v.end());
    return make_tensor({n + place.left}, type, all, ctx);
  };
  auto part = [&](const Tensor& whole) { return whole.narrow(0, place.left, n); };
  const Tensor param = put(in.param, t.param), grad = put(in.grad, t.grad), m = put(in.m, t.moments),
               v = put(in.v, t.moments), weights = put(Values(in.param.size(), 7.0), DType::bf16);
  AdamW args = kSettings;
  args.param = part(param);
  args.grad = part(grad);
  args.m = part(m);
  args.v = part(v);
  args.weights = part(weights);
  args.state = state_tensor(place.state, ctx);
  args.site = {.seed = 0x123456789abcdefull, .step = 99, .site = 5};
  args.first_element = place.first;
  adamw_kernel(args, ctx);
  auto get = [&](const Tensor& whole) { return slice(read_values(whole, ctx), place.left, n); };
  return {get(param), get(grad), get(m), get(v), get(weights)};
}

void expect_same_bits(const Adam& a, const Adam& b) {
  EXPECT_EQ(a.param, b.param);
  EXPECT_EQ(a.m, b.m);
  EXPECT_EQ(a.v, b.v);
  EXPECT_EQ(a.weights, b.weights);
}

std::vector<Types> all_types() {
  std::vector<Types> list;
  for (DType param : kFloats)
    for (DType grad : kFloats)
      for (DType moments : kFloats) list.push_back({param, grad, moments});
  return list;
}

TEST_F(GpuOptimizer, AdamWOfAllTypes) {
  for (const Types& t : all_types())
    for (std::int64_t n : {1, 7, 2048, 2049, 100003}) {
      SCOPED_TRACE(str("param ", t.param, " grad ", t.grad, " moments ", t.moments, " n ", n));
      const Adam in = adam_inputs(n, t), want = adam_oracle(in), got = run_adam(in, t);
      // Stochastic rounding errs by up to a whole unit in the last place: 2^-7 of small numbers.
      auto bound = [&](DType type) { return type == DType::f32 ? 1e-5 : n < 100 ? 8e-3 : 5e-3; };
      EXPECT_TRUE(close(got.param, want.param, bound(t.param)));
      EXPECT_TRUE(close(got.m, want.m, bound(t.moments)));
      EXPECT_TRUE(close(got.v, want.v, bound(t.moments)));
      EXPECT_EQ(got.grad, in.grad);
      Values rounded = got.param;
      for (double& w : rounded) w = stored(w, DType::bf16);
      EXPECT_EQ(got.weights, rounded);
      expect_same_bits(run_adam(in, t), got);
      expect_same_bits(run_adam(in, t, {.left = 1}), got);
    }
}

TEST_F(GpuOptimizer, BitsBelongToElementsAndSteps) {
  const Types t{DType::bf16, DType::bf16, DType::bf16};
  const std::int64_t n = 10000, cut = 8 * 37;
  const Adam in = adam_inputs(n, t), whole = run_adam(in, t);
  const Adam rest{slice(in.param, cut, n - cut),
                  slice(in.grad, cut, n - cut),
                  slice(in.m, cut, n - cut),
                  slice(in.v, cut, n - cut),
                  {}};
  const Adam got = run_adam(rest, t, {.first = cut});
  EXPECT_EQ(got.param, slice(whole.param, cut, n - cut));
  EXPECT_EQ(got.m, slice(whole.m, cut, n - cut));
  EXPECT_EQ(got.v, slice(whole.v, cut, n - cut));
  EXPECT_NE(run_adam(rest, t, {.first = 0}).m, got.m) << "elements of other numbers have other bits";
  EXPECT_NO_THROW(run_adam(rest, t, {.first = std::int64_t{8} << 40}));
  EXPECT_THROW(run_adam(rest, t, {.first = 4}), Error);
}

// The bits are defined as follows: 16 for each element; eight elements of one target share a Philox block.
TEST_F(GpuOptimizer, RoundsWithThePromisedBits) {
  const Types t{DType::f32, DType::f32, DType::bf16};
  const std::int64_t n = 3000, first = 800;
  Adam in{Values(n, 1.0), Values(n, 0.0), Values(n, 1.0), Values(n, 1.0), {}};
  const Adam got = run_adam(in, t, {.first = first});
  const RandomSite site{.seed = 0x123456789abcdefull, .step = kStep.step, .site = 5};
  for (std::int64_t i = 0; i < n; ++i) {
    const auto e = static_cast<std::uint64_t>(first + i);
    auto rounded = [&](float x, std::uint64_t target) {
      const std::uint32_t word = random_block(site, 4 * (e / 8) + target).v[e % 8 / 2];
      const std::uint32_t bits = e % 2 ? word >> 16 : word & 0xffffu;
      return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + bits) & 0xffff0000u);
    };
    ASSERT_EQ(got.m[static_cast<std::size_t>(i)], rounded(kSettings.beta1, 1)) << i;
    ASSERT_EQ(got.v[static_cast<std::size_t>(i)], rounded(kSettings.beta2, 2)) << i;
  }
}

TEST_F(GpuOptimizer, RandomRoundingIsUnbiased) {
  const Types t{DType::bf16, DType::f32, DType::bf16};
  const std::int64_t n = 1 << 20;
  const std::size_t count = n;
  // All elements have the same gradient: far less than half a unit in the last place is added to param.
  Adam in{Values(count, 1.0),
          Values(count, 0.3),
          Values(count, stored(0.01, t.moments)),
          Values(count, stored(0.9, t.moments)),
          {}};
  Adam one = in;
  for (Values* v : {&one.param, &one.grad, &one.m, &one.v}) v->resize(1);
  const Adam want = adam_oracle(one), got = run_adam(in, t);
  auto check = [&](const char* name, const Values& values, double expected) {
    double mean = 0;
    for (double x : values) mean += x / static_cast<double>(n);
    const double unit = std::exp2(std::floor(std::log2(std::abs(expected))) - 7);
    EXPECT_NEAR(mean, expected, 6 * unit / 2 / std::sqrt(static_cast<double>(n)) + 1e-6 * std::abs(expected)) << name;
    for (double x : values) ASSERT_LT(std::abs(x - expected), unit * 1.001) << name;
  };
  check("param", got.param, want.param[0]);
  check("m", got.m, want.m[0]);
  check("v", got.v, want.v[0]);
}

TEST_F(GpuOptimizer, WhatIsNotFinitePassesThrough) {
  const Types t{DType::bf16, DType::f32, DType::bf16};
  Adam in = adam_inputs(600, t);
  in.grad[5] = INFINITY;
  in.grad[301] = NAN;
  in.param[40] = -INFINITY;
  const Adam got = run_adam(in, t);
  EXPECT_EQ(got.m[5], INFINITY);
  EXPECT_TRUE(std::isnan(got.m[301]) && std::isnan(got.v[301]) && std::isnan(got.param[301]));
  EXPECT_EQ(got.param[40], -INFINITY);
  for (std::size_t i = 0; i < 600; ++i)
    EXPECT_TRUE(i == 5 || i == 301 || (std::isfinite(got.m[i]) && (i == 40 || std::isfinite(got.param[i])))) << i;
}

TEST_F(GpuOptimizer, AStepThatIsNotFiniteWritesNothing) {
  StepState bad = kStep;
  bad.accepted = 0;
  for (const Types& t : all_types()) {
    const Adam in = adam_inputs(5000, t), got = run_adam(in, t, {.state = bad});
    EXPECT_EQ(got.param, in.param);
    EXPECT_EQ(got.m, in.m);
    EXPECT_EQ(got.v, in.v);
    EXPECT_EQ(got.weights, Values(5000, 7.0));
  }
}

}  // namespace
}  // namespace ring::test
