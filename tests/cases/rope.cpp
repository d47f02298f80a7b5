#include <cmath>

#include "tests/op_case.h"

namespace ring::test {
namespace {

struct RopeSetting {
  std::int64_t n, heads, width;
  std::int64_t first = 0, step = 1;  // positions
  double base = 10000;
  bool bench = false;
};

Values frequencies(const RopeSetting& s) {
  Values f;
  for (std::int64_t i = 0; i < s.width / 2; ++i)
    f.push_back(static_cast<float>(std::pow(s.base, -2.0 * static_cast<double>(i) / static_cast<double>(s.width))));
  return f;
}

std::vector<Values> rope_oracle(const RopeSetting& s, const std::vector<Values>& in) {
  const Values &x = in[0], &position = in[1], &inv_freq = in[2];
  Values y(x.size());
  const auto half = static_cast<std::size_t>(s.width / 2), heads = static_cast<std::size_t>(s.heads);
  for (std::size_t n = 0; n < position.size(); ++n)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t i = 0; i < half; ++i) {
        const std::size_t a = (n * heads + h) * 2 * half + i, b = a + half;
        const double angle = position[n] * inv_freq[i];
        y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
        y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      }
  return {y};
}

OpCase make_rope(const RopeSetting& s) {
  OpCase c;
  c.op = "rope";
  c.name = str("N", s.n, "_H", s.heads, "_D", s.width, "_from", s.first);
  Values positions;
  for (std::int64_t i = 0; i < s.n; ++i) positions.push_back(static_cast<double>(s.first + i % 512 * s.step));
  c.inputs = {{.name = "x", .shape = {s.n, s.heads, s.width}},
              {.name = "positions", .shape = {s.n}, .values = positions, .differentiable = false, .dtype = DType::i32},
              {.name = "inv_freq", .shape = {s.width / 2}, .values = frequencies(s), .differentiable = false}};
  c.oracle = [s](const std::vector<Values>& in) { return rope_oracle(s, in); };
  c.run = [](Run& run, const std::vector<Var>& in) {
    return std::vector<Var>{rope(run, in[0], in[1].value, in[2].value)};
  };
  const auto n = static_cast<double>(s.n * s.heads * s.width);
  c.flops = 3 * n;
  c.bytes = 8 * n;
  c.bench = s.bench;
  return c;
}

std::vector<OpCase> rope_cases() {
  return {make_rope({.n = 1, .heads = 1, .width = 8}),
          make_rope({.n = 37, .heads = 3, .width = 24}),
          make_rope({.n = 300, .heads = 2, .width = 64, .first = 5}),
          make_rope({.n = 40, .heads = 2, .width = 72, .first = 1000000, .step = 12345, .base = 500000}),
          make_rope({.n = 768, .heads = 4, .width = 32, .bench = true}),
          make_rope({.n = 8192, .heads = 16, .width = 128, .base = 500000, .bench = true})};
}

const AddCases added_ropes(rope_cases);

}  // namespace
}  // namespace ring::test
