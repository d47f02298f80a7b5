#pragma once
// One rank of a model whose tensors are sliced among ranks.

#include <cmath>
#include <memory>
#include <string>

#include "tests/comm/ranks.h"
#include "tests/op_case.h"

namespace ring::test {

// Fails if the relative L2 error exceeds the tolerance or any element is NaN.
inline void expect_close(const char* what, const Values& got, const Values& want, double tolerance) {
  RING_CHECK(got.size() == want.size(), what, ": ", got.size(), " elements, expected ", want.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  RING_CHECK(std::sqrt(error) <= tolerance * std::sqrt(norm), what, ": L2 error ", std::sqrt(error), " of ",
             std::sqrt(norm));
}

inline Values rows_of(const Values& all, std::size_t rank, std::size_t size) {
  const std::size_t n = all.size() / size;
  return {all.begin() + static_cast<std::ptrdiff_t>(rank * n),
          all.begin() + static_cast<std::ptrdiff_t>((rank + 1) * n)};
}
inline Var leaf(const Shape& shape, const Values& v, const ExecContext& ctx) {
  return {make_tensor(shape, DType::f32, v, ctx), std::make_shared<GradSlot>()};
}

struct World {
  Communicator& comm;
  ExecContext ctx;
  Tape tape{};
  Run run{.ctx = ctx, .tape = &tape, .layout = {.tp = &comm}};
  std::size_t rank = static_cast<std::size_t>(comm.rank()), size = static_cast<std::size_t>(comm.size());
  explicit World(Communicator& c, const Stream& stream = Stream::cpu(1)) : comm(c), ctx{stream} {}
  Values read(const Tensor& t) const { return read_values(t, ctx); }
};

}  // namespace ring::test
