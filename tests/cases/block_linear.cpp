#include "autograd/block_linear.h"

#include "tests/op_case.h"

namespace ring::test {
namespace {

struct BlockLinearExtents {
  std::int64_t n, k, channels;
  std::vector<OutputBlock> blocks;
  bool residual = false;
};

std::vector<Values> block_linear_oracle(const BlockLinearExtents& e, const std::vector<Values>& in) {
  const std::int64_t width = e.k * std::ssize(e.blocks);
  Values y = e.residual ? in[2] : Values(static_cast<std::size_t>(e.n * e.channels));
  for (std::int64_t i = 0; i < e.n; ++i) {
    std::int64_t row = 0;
    for (std::int64_t block = 0; block < std::ssize(e.blocks); ++block)
      for (std::int64_t j = 0; j < e.blocks[static_cast<std::size_t>(block)].count; ++j, ++row)
        for (std::int64_t c = 0; c < e.k; ++c)
          y[static_cast<std::size_t>(i * e.channels + e.blocks[static_cast<std::size_t>(block)].first + j)] +=
              in[0][static_cast<std::size_t>(i * width + block * e.k + c)] *
              in[1][static_cast<std::size_t>(row * e.k + c)];
  }
  return {y};
}

OpCase make_block_linear(const BlockLinearExtents& e) {
  std::int64_t rows = 0;
  for (const OutputBlock& b : e.blocks) rows += b.count;
  OpCase c;
  c.op = "block_linear";
  c.name = str("N", e.n, "_K", e.k, "_M", e.channels, "_B", e.blocks.size(), e.residual ? "_residual" : "");
  c.inputs = {{.name = "x", .shape = {e.n, e.k * std::ssize(e.blocks)}}, {.name = "w", .shape = {rows, e.k}}};
  if (e.residual) c.inputs.push_back({.name = "residual", .shape = {e.n, e.channels}});
  c.oracle = [e](const std::vector<Values>& in) { return block_linear_oracle(e, in); };
  c.run = [e](Run& run, const std::vector<Var>& in) {
    return std::vector<Var>{block_linear(run, in[0], in[1], e.blocks, e.channels, e.residual ? in[2] : Var{})};
  };
  const double n = static_cast<double>(e.n), k = static_cast<double>(e.k), m = static_cast<double>(rows),
               blocks = static_cast<double>(e.blocks.size());
  c.flops = 2 * n * m * k;
  c.backward_flops = 2 * c.flops;
  c.bytes = 4 * (n * k * blocks + m * k + n * m);
  c.backward_bytes = 4 * (2 * n * k * blocks + 2 * m * k + n * m);
  return c;
}

// Blocks of one and several outputs, with gaps at both ends and between blocks, and with a residual.
std::vector<OpCase> block_linear_cases() {
  return {make_block_linear({1, 1, 1, {{0, 1}}}), make_block_linear({37, 8, 24, {{0, 24}}, true}),
          make_block_linear({33, 4, 40, {{0, 16}, {16, 8}, {24, 16}}, true}),
          make_block_linear({20, 3, 41, {{5, 7}, {12, 9}, {30, 8}}}),
          make_block_linear({130, 16, 96, {{0, 64}, {80, 16}}})};
}

const AddCases added_block_linears(block_linear_cases);

}  // namespace
}  // namespace ring::test
