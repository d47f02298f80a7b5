#include "kernels/batched_matmul.h"

#include "kernels/cpu/rows.h"
#include "kernels/matmul.h"

namespace ring::cpu {
namespace {

Tensor matrix(const Tensor& all, std::int64_t i) { return all.narrow(0, i, 1).view({all.dim(1), all.dim(2)}); }

void scale_and_add(const BatchedMatmul& args, const ExecContext& ctx) {
  if (args.alpha == 1 && !args.add.defined()) return;
  float* c = args.c.data<float>();
  const float* add = args.add.defined() ? args.add.data<float>() : nullptr;
  const float alpha = args.alpha, beta = args.beta;
  ctx.stream.pool().parallel_for(args.c.numel(), kPartWork, [=](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) c[i] = alpha * c[i] + (add ? beta * add[i] : 0.0f);
  });
}

void run(const BatchedMatmul& args, const ExecContext& ctx) {
  check(args);
  for (std::int64_t i = 0; i < args.c.dim(0); ++i) {
    const Matmul one{.a = matrix(args.a, i),
                     .b = matrix(args.b, i),
                     .c = matrix(args.c, i),
                     .transpose_a = args.transpose_a,
                     .transpose_b = args.transpose_b};
    matmul_kernel.first(one, ctx).fn(one, ctx);
  }
  scale_and_add(args, ctx);
}

const bool added = batched_matmul_kernel.add(Backend::cpu, {"one_by_one", run});

}  // namespace
}  // namespace ring::cpu
