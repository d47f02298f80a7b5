#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

void run_axpby(const Axpby& args, const ExecContext& ctx) {
  check_numel("axpby", "x", args.x, args.out.numel());
  check_numel("axpby", "out", args.out, args.out.numel());
  RING_CHECK(args.y.defined() || args.beta == 0, "axpby: beta is ", args.beta, " without y");
  RING_CHECK(!args.z.defined() || args.beta != 0, "axpby: z without y");
  if (args.z.defined()) check_numel("axpby", "z", args.z, args.out.numel());
  const float* x = args.x.data<float>();
  float* out = args.out.data<float>();
  const float alpha = args.alpha, beta = args.beta;
  if (beta == 0) {
    ctx.stream.pool().parallel_for(args.out.numel(), kPartWork, [=](std::int64_t begin, std::int64_t end, int) {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) out[i] = alpha * x[i];
    });
    return;
  }
  check_numel("axpby", "y", args.y, args.out.numel());
  const float* y = args.y.data<float>();
  const float* z = args.z.defined() ? args.z.data<float>() : nullptr;
  ctx.stream.pool().parallel_for(args.out.numel(), kPartWork, [=](std::int64_t begin, std::int64_t end, int) {
    if (z)
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) out[i] = alpha * x[i] + beta * y[i] + z[i];
    else
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) out[i] = alpha * x[i] + beta * y[i];
  });
}

constexpr std::int64_t kBlock = 256;  // elements whose factors are drawn at a time

// Sets factors[i], for i < kBlock, to `scale` if element first + i is kept, else to 0. Requires that `first` is a
// multiple of 4, since one draw serves four elements.
void draw_factors(const RandomSite& site, std::uint64_t first, std::uint32_t threshold, float scale, float* factors) {
  const std::uint64_t block = first / 4;
#pragma GCC ivdep
  for (std::uint64_t b = 0; b < kBlock / 4; ++b) {
    const Philox4 r = random_block(site, block + b);
    factors[4 * b] = (r.v[0] >> 8) >= threshold ? scale : 0.0f;
    factors[4 * b + 1] = (r.v[1] >> 8) >= threshold ? scale : 0.0f;
    factors[4 * b + 2] = (r.v[2] >> 8) >= threshold ? scale : 0.0f;
    factors[4 * b + 3] = (r.v[3] >> 8) >= threshold ? scale : 0.0f;
  }
}

struct DropoutPointers {
  const float *x, *residual;
  float* out;
  float beta;
};

void apply_factors(const DropoutPointers& p, const float* factors, std::int64_t n) {
  const float *x = p.x, *residual = p.residual;
  float* out = p.out;
  const float beta = p.beta;
  if (beta != 0) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = beta * out[i] + (residual ? residual[i] : 0.0f) + factors[i] * x[i];
  } else if (residual) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = residual[i] + factors[i] * x[i];
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = factors[i] * x[i];
  }
}

void run_dropout(const Dropout& args, const ExecContext& ctx) {
  RING_CHECK(args.rate >= 0 && args.rate < 1, "dropout: rate ", args.rate, " is not in [0, 1)");
  RING_CHECK(args.first_element >= 0, "dropout: first element ", args.first_element);
  check_numel("dropout", "x", args.x, args.out.numel());
  check_numel("dropout", "out", args.out, args.out.numel());
  if (args.residual.defined()) check_numel("dropout", "residual", args.residual, args.out.numel());
  RandomSite site = args.site;
  if (args.state.defined()) site.step = state_of("dropout", args.state).step;
  const auto threshold = static_cast<std::uint32_t>(std::ceil(static_cast<double>(args.rate) * 0x1p24));
  const float scale = 1.0f / (1.0f - args.rate);
  const std::int64_t width = width_of_rows("dropout", args.rows, args.out.numel());
  const std::int32_t* rows = width > 0 ? args.rows.data<std::int32_t>() : nullptr;
  ctx.stream.pool().parallel_for(args.out.numel(), kPartWork / 8, [&](std::int64_t begin, std::int64_t end, int) {
    float factors[kBlock];
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = rows ? i / width : 0, index = rows ? rows[row] * width + i - row * width : i;
      const std::int64_t element = args.first_element + index, skip = element % 4;  // draws start at a multiple of 4
      const std::int64_t n = std::min(rows ? std::min(end, (row + 1) * width) - i : end - i, kBlock - skip);
      draw_factors(site, static_cast<std::uint64_t>(element - skip), threshold, scale, factors);
      apply_factors({args.x.data<float>() + i, args.residual.defined() ? args.residual.data<float>() + i : nullptr,
                     args.out.data<float>() + i, args.beta},
                    factors + skip, n);
      i += n;
    }
  });
}

template <class From, class To, class Convert>
void convert(const Cast& args, const ExecContext& ctx, Convert one) {
  const From* x = args.x.data<From>();
  To* out = args.out.data<To>();
  ctx.stream.pool().parallel_for(args.x.numel(), kPartWork, [=](std::int64_t begin, std::int64_t end, int) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) out[i] = one(x[i]);
  });
}

void run_cast(const Cast& args, const ExecContext& ctx) {
  check_numel("cast", "out", args.out, args.x.numel());
  check_numel("cast", "x", args.x, args.x.numel());
  const DType from = args.x.dtype(), to = args.out.dtype();
  if (from == DType::f32 && to == DType::bf16) return convert<float, bf16>(args, ctx, to_bf16);
  if (from == DType::bf16 && to == DType::f32)
    return convert<bf16, float>(args, ctx, [](bf16 v) { return to_float(v); });
  RING_CHECK(from == to, "cast from ", from, " to ", to);
  copy(args.out.view({args.x.numel()}), args.x.view({args.x.numel()}), ctx.stream);
}

void run_random_normal(const RandomNormal& args, const ExecContext& ctx) {
  check_numel("random_normal", "out", args.out, args.out.numel());
  RING_CHECK(args.first_element >= 0 && args.first_element % 2 == 0, "random_normal: first element ",
             args.first_element, " is not even");
  float* out = args.out.data<float>();
  ctx.stream.pool().parallel_for(args.out.numel(), 1024, [&args, out](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = args.std * random_normal(args.site, static_cast<std::uint64_t>(args.first_element + i));
  });
}

const bool cast_added = cast_kernel.add(Backend::cpu, {"simd", run_cast});
const bool normal_added = random_normal_kernel.add(Backend::cpu, {"box_muller", run_random_normal});
const bool axpby_added = axpby_kernel.add(Backend::cpu, {"simd", run_axpby});
const bool dropout_added = dropout_kernel.add(Backend::cpu, {"simd", run_dropout});

}  // namespace
}  // namespace ring::cpu
