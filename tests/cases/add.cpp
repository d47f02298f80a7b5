#include "tests/op_case.h"

namespace ring::test {
namespace {

OpCase make_add(const Shape& shape, bool bench) {
  OpCase c;
  c.op = "add";
  c.name = "n" + std::to_string(shape.numel());
  c.inputs = {{.name = "a", .shape = shape}, {.name = "b", .shape = shape}};
  c.oracle = [](const std::vector<Values>& in) {
    Values y = in[0];
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += in[1][i];
    return std::vector<Values>{y};
  };
  c.run = [](Run& run, const std::vector<Var>& in) { return std::vector<Var>{add(run, in[0], in[1])}; };
  const auto n = static_cast<double>(shape.numel());
  c.flops = n;
  c.bytes = 12 * n;
  c.bench = bench;
  return c;
}

std::vector<OpCase> add_cases() {
  return {make_add({1, 1}, false), make_add({5, 37}, false), make_add({300, 128}, false), make_add({768, 128}, true),
          make_add({8192, 2048}, true)};
}

const AddCases added_adds(add_cases);

}  // namespace
}  // namespace ring::test
