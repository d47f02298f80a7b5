#include "kernels/elementwise.h"

#include "kernels/cuda/map.cuh"

namespace ring::cuda {
namespace {

struct Scale {
  float alpha;
  __device__ float operator()(float x) const { return alpha * x; }
};
struct Sum {
  float alpha, beta;
  __device__ float operator()(float x, float y) const { return alpha * x + beta * y; }
};
struct SumAndMore {
  float alpha, beta;
  __device__ float operator()(float x, float y, float z) const { return alpha * x + beta * y + z; }
};
struct Same {
  __device__ float operator()(float x) const { return x; }
};

template <class T>
void axpby(const Axpby& args, const ExecContext& ctx) {
  const std::int64_t n = args.out.numel();
  T *x = device_data<T>(args.x), *out = device_data<T>(args.out);
  if (args.beta == 0) return launch_map(ctx, Scale{args.alpha}, MapInputs<T, 1>{{x}}, out, n);
  check_numel("axpby", "y", args.y, n);
  T* y = device_data<T>(args.y);
  if (!args.z.defined()) return launch_map(ctx, Sum{args.alpha, args.beta}, MapInputs<T, 2>{{x, y}}, out, n);
  launch_map(ctx, SumAndMore{args.alpha, args.beta}, MapInputs<T, 3>{{x, y, device_data<T>(args.z)}}, out, n);
}

void run_axpby(const Axpby& args, const ExecContext& ctx) {
  check_numel("axpby", "x", args.x, args.out.numel());
  check_numel("axpby", "out", args.out, args.out.numel());
  RING_CHECK(args.y.defined() || args.beta == 0, "axpby: beta is ", args.beta, " without y");
  RING_CHECK(!args.z.defined() || args.beta != 0, "axpby: z without y");
  if (args.z.defined()) check_numel("axpby", "z", args.z, args.out.numel());
  visit_float("axpby", args.out.dtype(), [&]<class T>() { axpby<T>(args, ctx); });
}

void run_cast(const Cast& args, const ExecContext& ctx) {
  const std::int64_t n = args.out.numel();
  check_numel("cast", "x", args.x, n);
  check_numel("cast", "out", args.out, n);
  visit_float("cast", args.x.dtype(), [&]<class From>() {
    const MapInputs<From, 1> in{{device_data<From>(args.x)}};
    visit_float("cast", args.out.dtype(),
                [&]<class To>() { launch_map(ctx, Same{}, in, device_data<To>(args.out), n); });
  });
}

const bool added_elementwise[] = {
    axpby_kernel.add(Backend::cuda, {"packs", run_axpby}),
    cast_kernel.add(Backend::cuda, {"packs", run_cast}),
};

}  // namespace
}  // namespace ring::cuda
