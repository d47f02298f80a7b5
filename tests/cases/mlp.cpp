#include <cmath>
#include <numbers>

#include "tests/op_case.h"

namespace ring::test {
namespace {

struct MlpExtents {
  std::int64_t n, in, hidden, out;
  bool bias, residual, bench = false;
};

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// Returns x [n,k] w [m,k]^T as [n,m].
Values product(const Values& x, const Values& w, std::int64_t n, std::int64_t m, std::int64_t k) {
  Values y;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < m; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < k; ++c)
        sum += x[static_cast<std::size_t>(i * k + c)] * w[static_cast<std::size_t>(j * k + c)];
      y.push_back(sum);
    }
  return y;
}

void add_to_rows(Values& y, const Values& bias) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
}

// Inputs: x, w1, w2, then b1, b2 and residual if the case has them.
std::vector<Values> mlp_oracle(const MlpExtents& e, const std::vector<Values>& in) {
  Values h = product(in[0], in[1], e.n, e.hidden, e.in);
  if (e.bias) add_to_rows(h, in[3]);
  for (double& v : h) v = gelu_tanh(v);
  Values y = product(h, in[2], e.n, e.out, e.hidden);
  if (e.bias) add_to_rows(y, in[4]);
  for (std::size_t i = 0; e.residual && i < y.size(); ++i) y[i] += in.back()[i];
  return {y};
}

OpCase make_mlp(const MlpExtents& e) {
  OpCase c;
  c.op = "mlp_gelu_tanh";
  c.name = str("N", e.n, "_K", e.in, "_F", e.hidden, "_M", e.out, e.bias ? "_bias" : "", e.residual ? "_residual" : "");
  const double n = static_cast<double>(e.n), k = static_cast<double>(e.in), f = static_cast<double>(e.hidden),
               m = static_cast<double>(e.out);
  c.inputs = {{.name = "x", .shape = {e.n, e.in}},
              {.name = "w1", .shape = {e.hidden, e.in}, .scale = 3 / std::sqrt(k)},
              {.name = "w2", .shape = {e.out, e.hidden}, .scale = 3 / std::sqrt(f)}};
  if (e.bias) {
    c.inputs.push_back({.name = "b1", .shape = {e.hidden}});
    c.inputs.push_back({.name = "b2", .shape = {e.out}});
  }
  if (e.residual) c.inputs.push_back({.name = "residual", .shape = {e.n, e.out}});
  c.oracle = [e](const std::vector<Values>& in) { return mlp_oracle(e, in); };
  c.run = [e](Run& run, const std::vector<Var>& in) {
    const Var b1 = e.bias ? in[3] : Var{}, b2 = e.bias ? in[4] : Var{}, residual = e.residual ? in.back() : Var{};
    return std::vector<Var>{mlp_gelu_tanh(run, in[0], in[1], b1, in[2], b2, residual)};
  };
  c.flops = 2 * n * f * (k + m);
  c.backward_flops = 2 * c.flops;
  c.bytes = 4 * (n * k + f * k + m * f + n * m * (e.residual ? 2 : 1));
  c.backward_bytes = 4 * (2 * n * k + 2 * f * k + 2 * m * f + n * m);
  c.bench = e.bench;
  return c;
}

// Hidden widths that are multiples of 8 and others: epilogues may require whole 16 bytes.
std::vector<OpCase> mlp_cases() {
  return {make_mlp({1, 1, 1, 1, false, false}),
          make_mlp({40, 24, 64, 16, true, true}),
          make_mlp({33, 16, 40, 24, false, true}),
          make_mlp({64, 32, 128, 32, true, false}),
          make_mlp({17, 24, 96, 8, false, false}),
          make_mlp({37, 20, 67, 13, true, true}),
          make_mlp({19, 8, 36, 16, false, false}),
          make_mlp({128, 96, 384, 96, true, true}),
          make_mlp({1024, 768, 3072, 768, true, true, true})};
}

const AddCases added_mlps(mlp_cases);

}  // namespace
}  // namespace ring::test
