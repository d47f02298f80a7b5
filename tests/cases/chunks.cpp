// An MLP sublayer in chunks of rows, as in a decoder block.

#include <cmath>

#include "tests/op_case.h"

namespace ring::test {
namespace {

constexpr float kChunksEps = 1e-5f;

struct ChunksSetting {
  std::int64_t n, width, hidden, rows;
  bool recompute;
};

std::vector<Values> chunks_oracle(const ChunksSetting& s, const std::vector<Values>& in) {
  const auto width = static_cast<std::size_t>(s.width), hidden = static_cast<std::size_t>(s.hidden);
  const Values &x = in[0], &norm = in[1], &w1 = in[2], &b1 = in[3], &w2 = in[4];
  Values y = x;
  for (std::size_t row = 0; row < x.size(); row += width) {
    double square = 0;
    for (std::size_t c = 0; c < width; ++c) square += x[row + c] * x[row + c] / static_cast<double>(s.width);
    const auto before = [&](std::size_t f) {
      double sum = b1[f];
      for (std::size_t c = 0; c < width; ++c)
        sum += w1[f * width + c] * x[row + c] * norm[c] / std::sqrt(square + kChunksEps);
      return sum;
    };
    for (std::size_t f = 0; f < hidden; ++f) {
      const double gate = before(f), up = before(hidden + f);
      for (std::size_t c = 0; c < width; ++c) y[row + c] += w2[c * hidden + f] * up * gate / (1 + std::exp(-gate));
    }
  }
  return {y};
}

Var sublayer(Run& run, const Var& x, const std::vector<Var>& in) {
  return linear(run, swiglu(run, linear(run, rms_norm(run, x, in[1], kChunksEps), in[2], in[3])), in[4], {}, x);
}

OpCase make_chunks(const ChunksSetting& s) {
  OpCase c;
  c.op = "map_chunks";
  c.name = str("N", s.n, "_C", s.width, "_F", s.hidden, "_rows", s.rows, s.recompute ? "_recompute" : "");
  const auto scale = [](std::int64_t width) { return 2 / std::sqrt(static_cast<double>(width)); };
  c.inputs = {{.name = "x", .shape = {s.n, s.width}},
              {.name = "norm", .shape = {s.width}},
              {.name = "w1", .shape = {2 * s.hidden, s.width}, .scale = scale(s.width)},
              {.name = "b1", .shape = {2 * s.hidden}},
              {.name = "w2", .shape = {s.width, s.hidden}, .scale = scale(s.hidden)}};
  c.oracle = [s](const std::vector<Values>& in) { return chunks_oracle(s, in); };
  c.run = [s](Run& run, const std::vector<Var>& in) {
    run.saving.recompute = s.recompute;
    return std::vector<Var>{
        map_chunks(run, in[0], s.rows, [&](Run& chunk, const Var& x) { return sublayer(chunk, x, in); })};
  };
  const double n = static_cast<double>(s.n), products = 3 * static_cast<double>(s.width * s.hidden);
  c.flops = 2 * n * products;
  c.backward_flops = 2 * c.flops;
  c.bytes = 4 * (2 * n * static_cast<double>(s.width) + products);
  c.backward_bytes = 4 * (3 * n * static_cast<double>(s.width) + 2 * products);
  return c;
}

// All rows in one chunk, one row per chunk, chunks that divide the rows and chunks that do not.
std::vector<OpCase> chunks_cases() {
  return {make_chunks({7, 8, 12, 0, true}),   make_chunks({7, 8, 12, 7, false}),  make_chunks({5, 8, 12, 1, true}),
          make_chunks({24, 16, 40, 8, true}), make_chunks({29, 16, 24, 8, true}), make_chunks({29, 13, 19, 10, false})};
}

const AddCases added_chunks(chunks_cases);

}  // namespace
}  // namespace ring::test
