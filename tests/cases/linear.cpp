#include "tests/op_case.h"

namespace ring::test {
namespace {

struct LinearExtents {
  std::int64_t n, m, k;
  bool bias, bench;
};

std::vector<Values> linear_oracle(const LinearExtents& e, const std::vector<Values>& in) {
  Values y(static_cast<std::size_t>(e.n * e.m));
  for (std::int64_t i = 0; i < e.n; ++i)
    for (std::int64_t j = 0; j < e.m; ++j) {
      double sum = e.bias ? in[2][static_cast<std::size_t>(j)] : 0;
      for (std::int64_t c = 0; c < e.k; ++c)
        sum += in[0][static_cast<std::size_t>(i * e.k + c)] * in[1][static_cast<std::size_t>(j * e.k + c)];
      y[static_cast<std::size_t>(i * e.m + j)] = sum;
    }
  return {y};
}

OpCase make_linear(const LinearExtents& e) {
  OpCase c;
  c.op = "linear";
  c.name = str("N", e.n, "_M", e.m, "_K", e.k, e.bias ? "_bias" : "");
  c.inputs = {{.name = "x", .shape = {e.n, e.k}}, {.name = "w", .shape = {e.m, e.k}}};
  if (e.bias) c.inputs.push_back({.name = "b", .shape = {e.m}});
  c.oracle = [e](const std::vector<Values>& in) { return linear_oracle(e, in); };
  c.run = [bias = e.bias](Run& run, const std::vector<Var>& in) {
    return std::vector<Var>{linear(run, in[0], in[1], bias ? in[2] : Var{})};
  };
  const double n = static_cast<double>(e.n), m = static_cast<double>(e.m), k = static_cast<double>(e.k);
  c.flops = 2 * n * m * k;
  c.backward_flops = 2 * c.flops;
  c.bytes = 4 * (n * k + m * k + n * m);
  c.backward_bytes = 4 * (2 * n * k + 2 * m * k + n * m);
  c.bench = e.bench;
  return c;
}

std::vector<OpCase> linear_cases() {
  return {
      make_linear({1, 1, 1, false, false}),      make_linear({37, 65, 24, true, false}),
      make_linear({130, 17, 40, false, false}),  make_linear({768, 384, 128, true, true}),
      make_linear({768, 512, 128, false, true}), make_linear({768, 128, 512, false, true}),
      make_linear({768, 65, 128, false, true}),  make_linear({1024, 3072, 768, false, true}),
  };
}

const AddCases added_linears(linear_cases);

}  // namespace
}  // namespace ring::test
