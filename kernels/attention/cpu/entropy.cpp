#include "kernels/attention/entropy.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

void run_attention_entropy(const AttentionEntropy& args, const ExecContext& ctx) {
  check(args);
  const Rows q = rows_of("attention_entropy", "q", args.q), keys = rows_of("attention_entropy", "keys", args.keys);
  const std::int64_t rows = args.q.dim(0), heads = args.q.dim(1);
  const float *lse = args.lse.data<float>(), scale = args.scale;
  float* out = args.out.data<float>();
  ctx.stream.pool().parallel_for(rows, row_grain(heads * q.width), [=](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < heads; ++h) {
        const float total = lse[h * rows + n], *a = q[n * heads + h], *b = keys[n * heads + h];
        const bool sees = std::isfinite(total);
        float* const entropy = out + n * 2 * heads + h;
        entropy[0] = sees ? total - scale * dot(a, b, q.width) : 0;
        entropy[heads] = sees ? 1 : 0;
      }
  });
}

const bool added = attention_entropy_kernel.add(Backend::cpu, {"rows", run_attention_entropy});

}  // namespace
}  // namespace ring::cpu
