#include <cmath>

#include "tests/op_case.h"

namespace ring::test {
namespace {

struct NormSetting {
  std::int64_t n, width;
  bool layer, bias = false;
  double scale = 1, offset = 0;
  bool bench = false;
  double w_offset = 0;
};
constexpr float kNormEps = 1e-5f;

std::vector<Values> norm_oracle(const NormSetting& s, const std::vector<Values>& in) {
  const Values &x = in[0], &w = in[1];
  const auto width = static_cast<std::size_t>(s.width);
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double mean = 0, square = 0;
    for (std::size_t c = 0; s.layer && c < width; ++c) mean += x[row + c] / static_cast<double>(s.width);
    for (std::size_t c = 0; c < width; ++c) square += std::pow(x[row + c] - mean, 2) / static_cast<double>(s.width);
    for (std::size_t c = 0; c < width; ++c)
      y[row + c] = (x[row + c] - mean) / std::sqrt(square + kNormEps) * (w[c] + s.w_offset) + (s.bias ? in[2][c] : 0);
  }
  return {y};
}

OpCase make_norm(const NormSetting& s) {
  OpCase c;
  c.op = s.layer ? "layer_norm" : "rms_norm";
  c.name = str("N", s.n, "_C", s.width, s.bias ? "_bias" : "", s.scale != 1 ? str("_scale", s.scale) : "",
               s.offset != 0 ? str("_offset", s.offset) : "", s.w_offset != 0 ? "_zero_centered" : "");
  for (char& ch : c.name)
    if (ch == '-' || ch == '+' || ch == '.') ch = '_';
  Input x{.name = "x", .shape = {s.n, s.width}, .scale = s.scale};
  if (s.offset != 0) {
    x.values = random_values(c.op + c.name, s.n * s.width, s.scale);
    for (double& v : x.values) v += s.offset;
  }
  c.inputs = {x, {.name = "w", .shape = {s.width}}};
  if (s.bias) c.inputs.push_back({.name = "b", .shape = {s.width}});
  c.oracle = [s](const std::vector<Values>& in) { return norm_oracle(s, in); };
  c.run = [s](Run& run, const std::vector<Var>& in) {
    if (!s.layer) return std::vector<Var>{rms_norm(run, in[0], in[1], kNormEps, static_cast<float>(s.w_offset))};
    return std::vector<Var>{layer_norm(run, in[0], in[1], s.bias ? in[2] : Var{}, kNormEps)};
  };
  const auto n = static_cast<double>(s.n * s.width);
  c.flops = (s.layer ? 8 : 4) * n;
  c.backward_flops = (s.layer ? 14 : 9) * n;
  c.bytes = 8 * n;
  c.backward_bytes = 12 * n;
  c.bench = s.bench;
  return c;
}

std::vector<OpCase> norm_cases() {
  std::vector<OpCase> list;
  for (bool layer : {false, true})
    for (NormSetting s : {NormSetting{.n = 1, .width = 8},
                          {.n = 5, .width = 37},
                          {.n = 3, .width = 3},
                          {.n = 200, .width = 129},
                          {.n = 9, .width = 64, .scale = 1e-4},
                          {.n = 9, .width = 64, .scale = 1e4},
                          {.n = 768, .width = 128, .bench = true},
                          {.n = 4096, .width = 4096, .bench = true}}) {
      s.layer = layer;
      list.push_back(make_norm(s));
    }
  for (NormSetting s :
       {NormSetting{.n = 1, .width = 8}, {.n = 300, .width = 40}, {.n = 768, .width = 128, .bench = true}}) {
    s.layer = s.bias = true;
    list.push_back(make_norm(s));
  }
  for (const std::int64_t width : {37, 128, 4096}) list.push_back(make_norm({.n = 9, .width = width, .w_offset = 1}));
  // A mean far from zero: a variance computed as E[x^2] - E[x]^2 in f32 would lose all precision.
  OpCase shifted = make_norm({.n = 6, .width = 72, .layer = true, .bias = true, .offset = 300});
  shifted.tolerance = 1e-4;
  shifted.grad_tolerance = 1e-3;
  list.push_back(shifted);
  return list;
}

const AddCases added_norms(norm_cases);

}  // namespace
}  // namespace ring::test
