#include "kernels/attention/pools/pool_gate.h"

#include <cmath>

#include "kernels/attention/cpu/common.h"
#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

float change_of(const Heads& dout, const float* pooled, const Heads& attended, std::int64_t n, std::int64_t h) {
  const float *d = dout.at(n, h), *a = attended.at(n, h);
  float sum = 0;
  for (std::int64_t i = 0; i < dout.dim; ++i) sum += d[i] * (pooled[i] - a[i]);
  return sum;
}

void run(const PoolGate& a, const ExecContext& ctx) {
  check(a);
  const std::int64_t rows = a.lse.dim(1), heads = a.lse.dim(0);
  const bool gradient = a.dout.defined();
  const Heads dout = gradient ? heads_of(a.dout) : Heads{}, attended = gradient ? heads_of(a.attended) : Heads{};
  const float *gates = gradient ? nullptr : a.gates.data<float>(),
              *pooled = gradient ? a.pooled.data<float>() : nullptr, *pooled_lse = a.pooled_lse.data<float>(),
              *lse = a.lse.data<float>();
  float* out = a.out.data<float>();
  ctx.stream.pool().parallel_for(
      rows, row_grain(heads * std::max<std::int64_t>(1, dout.dim)), [=](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t n = begin; n < end; ++n)
          for (std::int64_t h = 0; h < heads; ++h) {
            const std::int64_t at = h * rows + n;
            out[at] = 0;
            if (!std::isfinite(pooled_lse[at])) continue;
            const float of =
                gradient ? change_of(dout, pooled + (n * heads + h) * dout.dim, attended, n, h) : gates[at];
            out[at] = std::exp(pooled_lse[at] - lse[at]) * of;
          }
      });
}

void run_transpose(const Transpose& a, const ExecContext& ctx) {
  check(a);
  const std::int64_t rows = a.x.dim(0), columns = a.x.dim(1);
  const float *x = a.x.data<float>(), beta = a.beta;
  float* out = a.out.data<float>();
  ctx.stream.pool().parallel_for(columns, row_grain(rows), [=](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t c = begin; c < end; ++c)
      for (std::int64_t r = 0; r < rows; ++r) {
        float& to = out[c * rows + r];
        to = (beta == 0 ? 0 : beta * to) + x[r * columns + c];
      }
  });
}

const bool added[] = {pool_gate_kernel.add(Backend::cpu, {"rows", run}),
                      transpose_kernel.add(Backend::cpu, {"rows", run_transpose})};

}  // namespace
}  // namespace ring::cpu
