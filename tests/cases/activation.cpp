#include <cmath>
#include <numbers>

#include "tests/op_case.h"

namespace ring::test {
namespace {

constexpr float kCap = 3;

double apply(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::relu2: return x > 0 ? x * x : 0;
    case Activation::soft_cap: return kCap * std::tanh(x / kCap);
  }
  return 0;
}

const char* name_of(Activation kind) {
  if (kind == Activation::gelu) return "gelu";
  if (kind == Activation::soft_cap) return "soft_cap";
  return kind == Activation::gelu_tanh ? "gelu_tanh" : "relu2";
}

OpCase make_activation(Activation kind, std::int64_t n, std::int64_t width, double scale, bool bench = false) {
  OpCase c;
  c.op = "activate";
  c.name = str(name_of(kind), "_N", n, "_C", width, "_scale", scale);
  c.inputs = {{.name = "x", .shape = {n, width}, .scale = scale}};
  c.oracle = [kind](const std::vector<Values>& in) {
    Values y = in[0];
    for (double& v : y) v = apply(kind, v);
    return std::vector<Values>{y};
  };
  c.run = [kind](Run& run, const std::vector<Var>& in) { return std::vector<Var>{activate(run, in[0], kind, kCap)}; };
  const auto count = static_cast<double>(n * width);
  c.flops = (kind == Activation::relu2 ? 2 : 30) * count;
  c.backward_flops = (kind == Activation::relu2 ? 3 : 34) * count;
  c.bytes = 8 * count;
  c.backward_bytes = 12 * count;
  c.bench = bench;
  return c;
}

std::vector<OpCase> activations() {
  std::vector<OpCase> list;
  for (Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::relu2, Activation::soft_cap}) {
    list.push_back(make_activation(kind, 1, 1, 1));
    list.push_back(make_activation(kind, 40, 37, 4));
    list.push_back(make_activation(kind, 300, 67, 30));
    list.push_back(make_activation(kind, 768, 512, 2, true));
    list.push_back(make_activation(kind, 4096, 4096, 2, true));
  }
  return list;
}

std::vector<Values> gated_oracle(std::int64_t width, Gate kind, const std::vector<Values>& in) {
  Values y;
  const auto w = static_cast<std::size_t>(width);
  for (std::size_t row = 0; row < in[0].size(); row += 2 * w)
    for (std::size_t c = 0; c < w; ++c) {
      const double gate = in[0][row + c];
      const double factor = kind == Gate::silu ? gate / (1 + std::exp(-gate)) : apply(Activation::gelu_tanh, gate);
      y.push_back(factor * in[0][row + w + c]);
    }
  return {y};
}

OpCase make_swiglu(std::int64_t n, std::int64_t width, double scale, bool bench = false, Gate gate = Gate::silu) {
  OpCase c;
  c.op = "swiglu";
  c.name = str("N", n, "_F", width, "_scale", scale, gate == Gate::silu ? "" : "_gelu_tanh");
  c.inputs = {{.name = "gate_up", .shape = {n, 2 * width}, .scale = scale}};
  c.oracle = [width, gate](const std::vector<Values>& in) { return gated_oracle(width, gate, in); };
  c.run = [gate](Run& run, const std::vector<Var>& in) { return std::vector<Var>{swiglu(run, in[0], gate)}; };
  const auto count = static_cast<double>(n * width);
  c.flops = 25 * count;
  c.backward_flops = 30 * count;
  c.bytes = 12 * count;
  c.backward_bytes = 20 * count;
  c.bench = bench;
  return c;
}

std::vector<OpCase> swiglus() {
  return {make_swiglu(1, 1, 1),
          make_swiglu(9, 37, 4),
          make_swiglu(200, 40, 1),
          make_swiglu(5, 67, 90),
          make_swiglu(768, 352, 2, true),
          make_swiglu(4096, 2816, 2, true),
          make_swiglu(9, 37, 4, false, Gate::gelu_tanh),
          make_swiglu(200, 40, 1, false, Gate::gelu_tanh)};
}

OpCase make_sigmoid_gate(std::int64_t n, std::int64_t width, double scale, bool bench = false) {
  OpCase c;
  c.op = "sigmoid_gate";
  c.name = str("N", n, "_C", width, "_scale", scale);
  c.inputs = {{.name = "x", .shape = {n, width}}, {.name = "gate", .shape = {n, width}, .scale = scale}};
  c.oracle = [](const std::vector<Values>& in) {
    Values y = in[0];
    for (std::size_t i = 0; i < y.size(); ++i) y[i] /= 1 + std::exp(-in[1][i]);
    return std::vector<Values>{y};
  };
  c.run = [](Run& run, const std::vector<Var>& in) { return std::vector<Var>{sigmoid_gate(run, in[0], in[1])}; };
  const auto count = static_cast<double>(n * width);
  c.flops = 20 * count;
  c.backward_flops = 45 * count;
  c.bytes = 12 * count;
  c.backward_bytes = 28 * count;
  c.bench = bench;
  return c;
}

std::vector<OpCase> sigmoid_gates() {
  return {make_sigmoid_gate(1, 1, 1), make_sigmoid_gate(9, 37, 4), make_sigmoid_gate(200, 40, 1),
          make_sigmoid_gate(5, 67, 90), make_sigmoid_gate(4096, 2048, 2, true)};
}

const AddCases added_activations(activations), added_swiglus(swiglus), added_sigmoid_gates(sigmoid_gates);

}  // namespace
}  // namespace ring::test
