#include "kernels/rope.h"

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

constexpr double kPerRadian = 0.15915494309189535;  // turns per radian

// Computes the cosines and sines of a position. Angles may be millions of radians, so they are reduced to one turn in
// f64; after that f32 suffices.
void rotations(double position, const float* inv_freq, std::int64_t half, float sign, float* cosine, float* sine) {
  constexpr double round = 6755399441055744.0;  // 1.5 * 2^52: adding and subtracting it rounds to the nearest integer
  for (std::int64_t i = 0; i < half; ++i) {
    const double turns = position * (static_cast<double>(inv_freq[i]) * kPerRadian);
    sine[i] = static_cast<float>(turns - ((turns + round) - round));
  }
#pragma GCC ivdep
  for (std::int64_t i = 0; i < half; ++i) {
    const Rotation r = rotation_fast(sine[i]);
    cosine[i] = r.cos;
    sine[i] = r.sin * sign;
  }
}

void rotate(const float* x, float* out, const float* cosine, const float* sine, std::int64_t half, float beta) {
  if (beta == 0) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      out[i] = a * cosine[i] - b * sine[i];
      out[i + half] = b * cosine[i] + a * sine[i];
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      out[i] = beta * out[i] + (a * cosine[i] - b * sine[i]);
      out[i + half] = beta * out[i + half] + (b * cosine[i] + a * sine[i]);
    }
  }
}

void run_rope(const Rope& args, const ExecContext& ctx) {
  check_rope(args);
  const Tensor &x = args.x, &out = args.out;
  const std::int64_t heads = x.dim(1), width = x.dim(2), half = width / 2;
  const Tensor scratch = ctx.empty({ctx.stream.pool().size(), width});
  const float *in = x.data<float>(), *inv_freq = args.inv_freq.data<float>();
  float *to = out.data<float>(), *angles = scratch.data<float>();
  const std::int32_t* positions = args.positions.data<std::int32_t>();
  const float sign = args.inverse ? -1.0f : 1.0f;
  ctx.stream.pool().parallel_for(x.dim(0), row_grain((2 * heads + 8) * width), [&](auto begin, auto end, int thread) {
    float *cosine = angles + thread * width, *sine = cosine + half;
    for (std::int64_t n = begin; n < end; ++n) {
      rotations(positions[n], inv_freq, half, sign, cosine, sine);
      for (std::int64_t h = 0; h < heads; ++h)
        rotate(in + n * x.stride(0) + h * x.stride(1), to + n * out.stride(0) + h * out.stride(1), cosine, sine, half,
               args.beta);
    }
  });
}

const bool added = rope_kernel.add(Backend::cpu, {"rows", run_rope});

}  // namespace
}  // namespace ring::cpu
