#include "tests/kernels/op_case_checks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/values.h"

namespace ring::test {

void PrintTo(const OpCase& c, std::ostream* out) { *out << c.op << "/" << c.name; }

namespace {

// For bench cases above these limits the oracle would take seconds.
constexpr double kMaxFlops = 2e8, kMaxBytes = 8e6;

double norm(const Values& v) {
  double s = 0;
  for (double x : v) s += x * x;
  return std::sqrt(s);
}

}  // namespace

testing::AssertionResult close(const Values& got, const Values& want, double tolerance) {
  if (got.size() != want.size())
    return testing::AssertionFailure() << got.size() << " elements, expected " << want.size();
  Values difference(got.size());
  for (std::size_t i = 0; i < got.size(); ++i) difference[i] = got[i] - want[i];
  const double error = norm(difference), bound = tolerance * norm(want);
  if (error <= bound && std::isfinite(error)) return testing::AssertionSuccess();
  std::size_t worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(difference[i]) <= std::abs(difference[worst]))) worst = i;
  return testing::AssertionFailure() << "L2 error " << error << " > " << bound << ", worst at element " << worst << ": "
                                     << got[worst] << ", expected " << want[worst];
}

namespace {

struct Result {
  std::vector<Values> outputs, grads;  // grads: one per input; empty if the input has no gradient
};

// State of the gradient slots before the op writes to them.
enum class Slots { fresh, bound_unwritten, bound_written };

struct Options {
  int threads = 2;
  Slots slots = Slots::fresh;
  int only_input = -1;  // only input that keeps its slot; -1: all
  int times = 1;        // number of times that the op is recorded on the same slots
  bool record = true;
};

Values existing_gradient(const OpCase& c, std::size_t input) {
  return random_values(c.op + c.name + "/existing", c.inputs[input].shape.numel());
}
Values cotangent(const OpCase& c, std::size_t output, std::size_t n) {
  if (c.root) return Values(n, output == 0 ? c.root_scale : 0.0);
  Values v = random_values(c.op + c.name + str("/cotangent", output), static_cast<std::int64_t>(n));
  for (double& x : v) x = to_float(to_bf16(static_cast<float>(x)));  // exact in every type
  return v;
}

void prepare_slot(const OpCase& c, std::size_t i, GradSlot& slot, Slots how, const ExecContext& ctx) {
  if (how == Slots::fresh) return;
  const Values existing = existing_gradient(c, i);
  slot.bound = true;
  slot.written = how == Slots::bound_written;
  slot.grad = slot.written ? make_tensor(c.inputs[i].shape, c.inputs[i].dtype, existing, ctx)
                           : ctx.empty(c.inputs[i].shape, c.inputs[i].dtype);
}

Result execute(const OpCase& c, const MakeContext& make, const Options& o = {}) {
  const ExecContext ctx = make(o.threads);
  Tape tape;
  Run run{.ctx = ctx, .tape = o.record ? &tape : nullptr, .seed = 7, .step = 3};
  const std::vector<Values> values = input_values(c);
  const std::vector<Var> first = make_inputs(c, values, ctx);
  for (std::size_t i = 0; i < first.size(); ++i)
    if (first[i].slot) prepare_slot(c, i, *first[i].slot, o.slots, ctx);
  Result r;
  std::vector<Var> outputs;
  for (int time = 0; time < o.times; ++time) {
    std::vector<Var> inputs = make_inputs(c, values, ctx);  // fresh memory each time: an op may overwrite it
    for (std::size_t i = 0; i < inputs.size(); ++i)
      inputs[i].slot = o.only_input < 0 || o.only_input == static_cast<int>(i) ? first[i].slot : nullptr;
    for (Var& out : c.run(run, inputs)) outputs.push_back(std::move(out));
  }
  for (const Var& out : outputs) r.outputs.push_back(read_values(out.value, ctx));
  if (!o.record) return r;
  const std::size_t per_call = outputs.size() / static_cast<std::size_t>(o.times);
  SlotPtr root;
  Tensor seed;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].slot) continue;
    const Values v = cotangent(c, i % per_call, r.outputs[i].size());
    root = outputs[i].slot;
    seed = c.root ? Tensor{} : make_tensor(outputs[i].value.shape(), outputs[i].value.dtype(), v, ctx);
    root->grad = seed;
    root->written = true;
  }
  outputs.clear();
  tape.backward(root, seed, ctx);
  for (const Var& in : first)
    r.grads.push_back(in.slot && in.slot->grad.defined() ? read_values(in.slot->grad, ctx) : Values{});
  return r;
}

// Returns the oracle's sum over outputs of <cotangent, output>.
double objective(const OpCase& c, const std::vector<Values>& inputs, const std::vector<bool>& has_gradient) {
  const std::vector<Values> outputs = c.oracle(inputs);
  double s = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (has_gradient[i]) s += dot(cotangent(c, i, outputs[i].size()), outputs[i]);
  return s;
}

double step_size(const Values& x) {
  const double rms = norm(x) / std::sqrt(static_cast<double>(std::max<std::size_t>(1, x.size())));
  return 1e-5 * std::min(1.0, std::max(rms, 1e-3));
}

// Returns the derivative of the objective along `direction` of the inputs; an empty direction keeps that input fixed.
double slope(const OpCase& c, const std::vector<Values>& x, const std::vector<Values>& direction, double h,
             const std::vector<bool>& has_gradient) {
  std::vector<Values> up = x, down = x;
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < direction[i].size(); ++j) {
      up[i][j] += h * direction[i][j];
      down[i][j] -= h * direction[i][j];
    }
  return (objective(c, up, has_gradient) - objective(c, down, has_gradient)) / (2 * h);
}

// Outputs that carry a gradient, and the size of the objective, which bounds the rounding of a difference quotient.
struct Probe {
  std::vector<bool> has_gradient;
  double magnitude = 0;
};
Probe probe(const OpCase& c, const MakeContext& make, const std::vector<Values>& x) {
  const ExecContext ctx = make(1);
  Tape tape;
  Run run{.ctx = ctx, .tape = &tape, .seed = 7, .step = 3};
  Probe p;
  for (const Var& out : c.run(run, make_inputs(c, x, ctx))) p.has_gradient.push_back(out.slot != nullptr);
  const std::vector<Values> outputs = c.oracle(x);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (p.has_gradient[i]) p.magnitude += norm(outputs[i]) * norm(cotangent(c, i, outputs[i].size()));
  return p;
}

bool differentiable(const Input& in) { return in.differentiable && is_float(in.dtype); }

}  // namespace

std::string full_name(const OpCase& c) { return c.op + "_" + c.name; }

std::vector<OpCase> tested_cases() {
  std::vector<OpCase> cases = all_cases();
  std::erase_if(cases, [](const OpCase& c) { return c.bench && (c.flops > kMaxFlops || c.bytes > kMaxBytes); });
  return cases;
}

void check_forward(const OpCase& c, const MakeContext& make, const std::vector<int>& thread_counts) {
  const std::vector<Values> want = c.oracle(input_values(c));
  for (int threads : thread_counts) {
    SCOPED_TRACE(str(threads, " threads"));
    const Result r = execute(c, make, {.threads = threads, .record = false});
    ASSERT_EQ(r.outputs.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(close(r.outputs[i], want[i], c.tolerance)) << "output " << i;
  }
}

void check_gradients(const OpCase& c, const MakeContext& make) {
  const std::vector<Values> x = input_values(c);
  const Result r = execute(c, make);
  const Probe p = probe(c, make, x);
  auto check = [&](const std::vector<Values>& direction, double got, double size, double h, const std::string& what) {
    const double want = slope(c, x, direction, h, p.has_gradient);
    const double rounding = 1e-15 * p.magnitude / h;
    const double error = std::abs(got - want), bound = c.grad_tolerance * (std::abs(want) + size) + rounding;
    EXPECT_TRUE(error <= bound) << what << ": " << got << ", finite difference " << want << ", bound " << bound;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!differentiable(c.inputs[i])) continue;
    const std::string& name = c.inputs[i].name;
    ASSERT_EQ(r.grads[i].size(), x[i].size()) << name;
    const auto n = static_cast<std::int64_t>(x[i].size());
    std::vector<Values> direction(x.size());
    for (int k = 0; k < (c.bench ? 1 : 3); ++k) {
      direction[i] = random_values(str(c.op, c.name, name, k), n);
      check(direction, dot(r.grads[i], direction[i]), norm(r.grads[i]), step_size(x[i]), str("d", name, " along ", k));
    }
    if (c.bench) continue;
    std::size_t largest = 0;
    for (std::size_t j = 0; j < x[i].size(); ++j)
      if (std::abs(r.grads[i][j]) > std::abs(r.grads[i][largest])) largest = j;
    for (std::size_t j : {largest, std::size_t{0}, x[i].size() / 2, x[i].size() - 1}) {
      direction[i].assign(x[i].size(), 0.0);
      direction[i][j] = 1;
      const double typical = norm(r.grads[i]) / std::sqrt(static_cast<double>(n));
      check(direction, r.grads[i][j], typical, step_size(x[i]), str("d", name, "[", j, "]"));
    }
  }
}

void check_accumulation(const OpCase& c, const MakeContext& make, const std::vector<int>& thread_counts) {
  const Result base = execute(c, make), again = execute(c, make);
  EXPECT_EQ(base.outputs, again.outputs) << "two runs differ";
  EXPECT_EQ(base.grads, again.grads) << "two runs differ";
  EXPECT_EQ(execute(c, make, {.record = false}).outputs, base.outputs) << "inference differs from training";
  EXPECT_EQ(execute(c, make, {.slots = Slots::bound_unwritten}).grads, base.grads)
      << "a first write read its destination";
  const Result written = execute(c, make, {.slots = Slots::bound_written});
  std::vector<Result> others;
  for (int threads : thread_counts) others.push_back(execute(c, make, {.threads = threads}));
  Result twice;
  if (!c.root) twice = execute(c, make, {.times = 2});
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (!differentiable(c.inputs[i])) continue;
    SCOPED_TRACE(c.inputs[i].name);
    for (const Result& other : others)
      EXPECT_TRUE(close(other.grads[i], base.grads[i], c.tolerance * 10)) << "another number of threads";
    const Values existing = existing_gradient(c, i);
    Values sum = base.grads[i], twofold = base.grads[i];
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += existing[j];
    for (double& v : twofold) v *= 2;
    // If the two nearly cancel, the sum is small, but not the rounding error of the gradient.
    const double cancelled = std::max(1.0, norm(base.grads[i]) / norm(sum));
    EXPECT_TRUE(close(written.grads[i], sum, c.tolerance * cancelled)) << "not added to the existing gradient";
    EXPECT_TRUE(c.root || close(twice.grads[i], twofold, c.tolerance)) << "a slot used twice";
    const Result alone = execute(c, make, {.only_input = static_cast<int>(i)});
    EXPECT_TRUE(close(alone.grads[i], base.grads[i], c.tolerance)) << "only this gradient wanted";
  }
}

}  // namespace ring::test
