// CUDA norms in f32 and bf16 against their definitions in f64, computed from the stored inputs: widths on both sides of
// every plan, strided rows, gradients into fresh memory (full of NaN), over dy or x, or added.

#include <cmath>
#include <tuple>

#include "kernels/norm.h"
#include "tests/kernels/op_case_checks.h"
#include "tests/kernels/poison_allocator.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

// Rows [rows, heads, width] in a tensor with `before` and `after` further columns.
struct Layout {
  std::int64_t rows = 0, width = 0, heads = 1, before = 0, after = 0;
  std::int64_t columns() const { return before + heads * width + after; }
  std::int64_t count() const { return rows * heads; }
};
std::ostream& operator<<(std::ostream& out, const Layout& l) {
  return out << l.rows << " x " << l.heads << " x " << l.width << " between " << l.before << " and " << l.after;
}

Tensor view_of(const Tensor& whole, const Layout& l) {
  const Tensor rows = whole.narrow(1, l.before, l.heads * l.width);
  return l.heads == 1 ? rows : rows.split_dim(1, l.width);
}
Values inside(const Values& whole, const Layout& l) {
  Values v;
  for (std::int64_t n = 0; n < l.rows; ++n) {
    const auto begin = whole.begin() + n * l.columns() + l.before;
    v.insert(v.end(), begin, begin + l.heads * l.width);
  }
  return v;
}
void expect_same_outside(const Values& got, const Values& want, const Layout& l) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto c = static_cast<std::int64_t>(i) % l.columns() - l.before;
    if (c >= 0 && c < l.heads * l.width) continue;
    ASSERT_EQ(got[i], want[i]) << "a neighbour was written, element " << i;
  }
}

enum class Into { fresh, dy, x };

struct NormOptions {
  Into into = Into::fresh;
  float beta_x = 0, beta_w = 0;
  DType gradient = DType::f32;  // of dw and db
  bool want_dx = true, want_dw = true, bias = true;
};

struct NormResult {
  Values y, mean, rstd, dx, dw, db;
  bool operator==(const NormResult&) const = default;
};

struct NormInputs {
  Values x, dy, dx, w, b, dw, db;
};

NormResult expected(bool centered, const NormInputs& in, const Layout& l, const NormOptions& o, double eps) {
  const auto width = static_cast<std::size_t>(l.width), count = static_cast<std::size_t>(l.count());
  NormResult r{.y = Values(in.x.size()), .dx = Values(in.x.size()), .dw = in.dw, .db = in.db};
  for (double& v : r.dw) v *= o.beta_w;
  for (double& v : r.db) v *= o.beta_w;
  for (std::size_t n = 0; n < count; ++n) {
    const double *x = &in.x[n * width], *dy = &in.dy[n * width];
    double mean = 0, square = 0, g = 0, gh = 0;
    for (std::size_t c = 0; centered && c < width; ++c) mean += x[c] / static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c) square += (x[c] - mean) * (x[c] - mean) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(square + eps);
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    for (std::size_t c = 0; c < width; ++c) {
      const double h = (x[c] - mean) * rstd;
      r.y[n * width + c] = h * in.w[c] + (centered && o.bias ? in.b[c] : 0);
      r.dw[c] += dy[c] * h;
      r.db[c] += dy[c];
      g += centered ? dy[c] * in.w[c] / static_cast<double>(width) : 0;
      gh += dy[c] * in.w[c] * h / static_cast<double>(width);
    }
    for (std::size_t c = 0; c < width; ++c)
      r.dx[n * width + c] = rstd * (dy[c] * in.w[c] - g - (x[c] - mean) * rstd * gh) +
                            (o.beta_x != 0 ? o.beta_x * in.dx[n * width + c] : 0);
  }
  return r;
}

// One forward and one backward on the GPU.
struct NormRun {
  bool centered;
  DType type;
  Layout l;
  NormOptions o;
  ExecContext ctx = poisoned_device_context({Backend::cuda, 0});
  NormInputs in{};

  Tensor random(const std::string& name, const Shape& shape, DType dtype) const {
    return make_tensor(shape, dtype, random_values(name, shape.numel(), 2), ctx);
  }

  void forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y, const Tensor& mean,
               const Tensor& rstd) const {
    if (centered)
      layer_norm_kernel({.x = x, .w = w, .b = b, .y = y, .mean = mean, .rstd = rstd}, ctx);
    else
      rms_norm_kernel({.x = x, .w = w, .y = y, .rstd = rstd}, ctx);
  }

  NormResult run() {
    const Shape shape{l.rows, l.columns()};
    const Tensor x = random("x", shape, type), dy = random("dy", shape, type);
    const Tensor w = random("w", {l.width}, type), b = random("b", {l.width}, type);
    const Tensor y = ctx.empty(shape, type), mean = ctx.empty({l.count()}), rstd = ctx.empty({l.count()});
    const Tensor dx = o.beta_x != 0 ? random("dx", shape, type) : ctx.empty(shape, type);
    const bool add = o.beta_w != 0;
    const Tensor dw = add ? random("dw", {l.width}, o.gradient) : ctx.empty({l.width}, o.gradient);
    const Tensor db = add ? random("db", {l.width}, o.gradient) : ctx.empty({l.width}, o.gradient);
    const Tensor into = o.into == Into::fresh ? dx : o.into == Into::dy ? dy : x;
    const Values x_whole = read_values(x, ctx), dy_whole = read_values(dy, ctx),
                 zeros(static_cast<std::size_t>(l.width));
    in = {inside(x_whole, l),
          inside(dy_whole, l),
          inside(read_values(dx, ctx), l),
          read_values(w, ctx),
          read_values(b, ctx),
          add ? read_values(dw, ctx) : zeros,
          add ? read_values(db, ctx) : zeros};
    forward(view_of(x, l), w, o.bias ? b : Tensor{}, view_of(y, l), mean, rstd);
    const Tensor out_dx = o.want_dx ? view_of(into, l) : Tensor{}, out_dw = o.want_dw ? dw : Tensor{};
    const Tensor x_view = view_of(x, l), dy_view = view_of(dy, l);
    if (centered)
      layer_norm_backward_kernel({.x = x_view,
                                  .w = w,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .dy = dy_view,
                                  .dx = out_dx,
                                  .dw = out_dw,
                                  .db = o.want_dw ? db : Tensor{},
                                  .beta_x = o.beta_x,
                                  .beta_w = o.beta_w,
                                  .beta_b = o.beta_w},
                                 ctx);
    else
      rms_norm_backward_kernel({.x = x_view,
                                .w = w,
                                .rstd = rstd,
                                .dy = dy_view,
                                .dx = out_dx,
                                .dw = out_dw,
                                .beta_x = o.beta_x,
                                .beta_w = o.beta_w},
                               ctx);
    const Values dx_whole = read_values(into, ctx);
    if (o.into == Into::dy) expect_same_outside(dx_whole, dy_whole, l);
    if (o.into == Into::x) expect_same_outside(dx_whole, x_whole, l);
    return {inside(read_values(y, ctx), l),
            centered ? read_values(mean, ctx) : Values{},
            read_values(rstd, ctx),
            o.want_dx ? inside(dx_whole, l) : Values{},
            o.want_dw ? read_values(dw, ctx) : Values{},
            o.want_dw && centered ? read_values(db, ctx) : Values{}};
  }
};

class GpuNorm : public testing::TestWithParam<std::tuple<bool, DType>> {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  }

  static void check(const Layout& l, const NormOptions& o = {}) {
    const auto [centered, type] = GetParam();
    SCOPED_TRACE(
        str(l, " into ", static_cast<int>(o.into), " beta ", o.beta_x, ", ", o.beta_w, " gradient ", o.gradient));
    NormRun device{.centered = centered, .type = type, .l = l, .o = o};
    const NormResult got = device.run(), want = expected(centered, device.in, l, o, 1e-5);
    auto compare = [](const char* name, const Values& g, const Values& w, double bound) {
      EXPECT_TRUE(close(g, w, bound)) << name;
    };
    compare("y", got.y, want.y, tolerance(type));
    compare("rstd", got.rstd, want.rstd, 1e-5);
    if (centered) compare("mean", got.mean, want.mean, 1e-5);
    if (o.want_dx) compare("dx", got.dx, want.dx, tolerance(type));
    if (o.want_dw) compare("dw", got.dw, want.dw, tolerance(o.gradient));
    if (o.want_dw && centered) compare("db", got.db, want.db, tolerance(o.gradient));
    NormRun again{.centered = centered, .type = type, .l = l, .o = o};
    EXPECT_TRUE(again.run() == got) << "two runs differ";
  }
};

TEST_P(GpuNorm, EveryWidth) {
  for (std::int64_t width : {8,    16,   24,   64,   100,  128,  192,  256,  384,   512,   640,   768,  896,
                             1024, 1032, 1536, 2048, 2560, 4096, 5120, 8192, 12288, 16384, 20480, 60000})
    check({.rows = width > 4096 ? 9 : 67, .width = width}, {.gradient = DType::bf16});
  for (std::int64_t width : {7, 37, 129, 767, 1023, 2049, 5001, 59999})
    check({.rows = width > 4096 ? 9 : 67, .width = width});
}

// Every block repeats its stages several times, the last time partially.
TEST_P(GpuNorm, ManyRows) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {70001, 8},   {55001, 64},  {30011, 128}, {15013, 256}, {6401, 512},  {5001, 768}, {4501, 1024},
      {3203, 1536}, {1703, 2048}, {850, 4096},  {601, 8192},  {290, 16384}, {9001, 37}};
  for (const auto& [rows, width] : shapes) check({.rows = rows, .width = width}, {.beta_x = 1, .beta_w = 1});
  for (const auto& [rows, width] : shapes)
    if (width == 128 || width == 768 || width == 1536 || width == 2048) check({.rows = rows, .width = width});
}

TEST_P(GpuNorm, StridedRowsAndHeads) {
  for (std::int64_t width : {8, 64, 128, 37})
    for (std::int64_t heads : {1, 3, 14})
      for (std::int64_t edge : {0, 8, 3})
        check({.rows = 133, .width = width, .heads = heads, .before = edge, .after = 2 * edge}, {.into = Into::dy});
  for (std::int64_t width : {768, 2048, 4096, 60000})
    for (std::int64_t edge : {8, 3})
      check({.rows = 29, .width = width, .before = edge, .after = edge}, {.into = Into::x});
}

TEST_P(GpuNorm, GradientsAreAddedOrLeftOut) {
  for (std::int64_t width : {64, 100, 768, 1024, 2048, 8192, 777, 20480})
    for (DType gradient : {DType::f32, DType::bf16}) {
      const Layout l{.rows = 301, .width = width, .before = 16};
      check(l, {.beta_x = 1, .beta_w = 1, .gradient = gradient});
      check(l, {.beta_x = 0.5f, .gradient = gradient, .want_dw = false});
      check(l, {.beta_w = 0.5f, .gradient = gradient, .want_dx = false, .bias = false});
      check(l, {.into = Into::dy, .gradient = gradient});
      check(l, {.into = Into::x, .gradient = gradient});
    }
}

TEST_P(GpuNorm, NoRows) {
  for (std::int64_t width : {64, 768, 2048, 37, 20480}) {
    check({.rows = 0, .width = width}, {.beta_w = 1});
    check({.rows = 0, .width = width}, {.want_dw = false});
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuNorm, testing::Combine(testing::Bool(), testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return str(std::get<0>(info.param) ? "layer_norm_" : "rms_norm_", std::get<1>(info.param));
                         });

}  // namespace
}  // namespace ring::test
