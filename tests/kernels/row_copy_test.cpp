// Copies of rows between strided tensors, on every available backend, against loops over elements.

#include "kernels/row_copy.h"

#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {
namespace {

struct CopyCase {
  std::int64_t heads, dim;  // copied; tensors have `all` heads of `width` elements, copied from element `at` on
  std::int64_t all, width, at;
  RowMove rows;
  DType type = DType::f32;
};

constexpr std::int64_t kRows = 600;

Tensor window(const Tensor& t, const CopyCase& c) { return t.narrow(1, 1, c.heads).narrow(2, c.at, c.dim); }

void expect_rows(const CopyCase& c, const ExecContext& ctx) {
  const Shape shape = {kRows, c.all, c.width};
  const Values from = random_values("from", shape.numel()), to = random_values("to", shape.numel());
  const Tensor src = make_tensor(shape, c.type, from, ctx), dst = make_tensor(shape, c.type, to, ctx);
  const Values moved = read_values(src, ctx);
  Values want = read_values(dst, ctx);
  const auto place = [&](std::int64_t n, std::int64_t h, std::int64_t d) {
    return static_cast<std::size_t>((n * c.all + h + 1) * c.width + c.at + d);
  };
  for (std::int64_t i = 0; i < c.rows.count; ++i)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t d = 0; d < c.dim; ++d)
        want[place(c.rows.to + i * c.rows.to_step, h, d)] = moved[place(c.rows.first + i * c.rows.step, h, d)];
  copy_rows_kernel({window(dst, c), window(src, c), c.rows}, ctx);
  EXPECT_EQ(read_values(dst, ctx), want) << c.heads << " heads of " << c.dim << ", " << c.rows.count << " rows";
}

void expect_all(const ExecContext& ctx) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const RowMove& rows : {RowMove{.count = kRows}, RowMove{.to = 3, .first = 17, .count = 501},
                                RowMove{.to = 1, .first = 2, .count = 149, .to_step = 2, .step = 4},
                                RowMove{.to = 5, .first = 5, .count = 1}, RowMove{.to = 9, .first = 1, .count = 0}}) {
      expect_rows({.heads = 4, .dim = 64, .all = 6, .width = 64, .at = 0, .rows = rows, .type = type}, ctx);
      expect_rows({.heads = 3, .dim = 32, .all = 5, .width = 48, .at = 8, .rows = rows, .type = type}, ctx);
      expect_rows({.heads = 2, .dim = 9, .all = 3, .width = 11, .at = 1, .rows = rows, .type = type}, ctx);
      expect_rows({.heads = 1, .dim = 1200, .all = 3, .width = 1216, .at = 16, .rows = rows, .type = type}, ctx);
    }
  const Tensor all = make_tensor({kRows, 2, 8}, DType::f32, random_values("all", kRows * 16), ctx),
               copy = ctx.empty(all.shape());
  copy_rows_kernel({copy, all, {.count = kRows}}, ctx);  // contiguous
  EXPECT_EQ(read_values(copy, ctx), read_values(all, ctx));
}

TEST(RowCopy, MovesTheseRowsAndNoOthers) { expect_all(poisoned_context(2)); }

TEST(GpuRowCopy, MovesTheseRowsAndNoOthers) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_all(poisoned_device_context({Backend::cuda, 0}));
}

TEST(RowCopy, RowsOutsideOfTheTensorsAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor a = ctx.zeros({4, 2, 8}), b = ctx.zeros({4, 2, 8}), narrow = ctx.zeros({4, 2, 6});
  EXPECT_THROW(copy_rows_kernel({a, b, {.first = 2, .count = 3}}, ctx), Error);
  EXPECT_THROW(copy_rows_kernel({a, b, {.to = 1, .count = 2, .to_step = 3}}, ctx), Error);
  EXPECT_THROW(copy_rows_kernel({a, narrow, {.count = 1}}, ctx), Error);
}

}  // namespace
}  // namespace ring::test
