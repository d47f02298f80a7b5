#include "kernels/muon.h"

#include "kernels/cuda/fp8_moments.cuh"

namespace ring::cuda {
namespace {

// Maximum matrices per launch. Their addresses are launch parameters, which hold at most 4 KB.
constexpr std::size_t kMost = 64;

struct Addresses {
  void *values, *gradient, *momentum;
  std::uint8_t* momentum_scales;  // null unless the momentum is FP8
  __nv_bfloat16* weights;         // null if the matrix has no bf16 weights
  std::uint64_t first;            // index of element 0 among all parameters, for the random bits
  bool aligned;                   // true if all pointers and the matrix's part of `update` are aligned to 16 bytes
};
struct Group {
  Addresses of[kMost];
  std::int64_t n;  // elements per matrix
  __nv_bfloat16* update;
  const StepState* state;
  RandomSite site;

  __device__ Flat<__nv_bfloat16> update_of(unsigned matrix) const { return {update + matrix * n, n}; }
};

// Calls step.run<whole>(i) for each tile that the thread block processes in its matrix. i: the lane's first element.
// whole: true if the tile is complete and all addresses are aligned.
template <class Step>
__device__ void over_tiles(const Group& group, const Step& step) {
  const bool aligned = group.of[blockIdx.y].aligned;
  const int in_tile = static_cast<int>(threadIdx.x) / kWarp * kWarpTile + static_cast<int>(threadIdx.x) % kWarp * kFour;
  // Loops over tiles, not over a lane's elements: all lanes must take part in every step.
  for (std::int64_t tile = std::int64_t{blockIdx.x} * kTile; tile < group.n; tile += std::int64_t{gridDim.x} * kTile) {
    if (aligned && tile + kTile <= group.n)
      step.template run<true>(tile + in_tile);
    else
      step.template run<false>(tile + in_tile);
  }
}

template <class G, class M>
struct MomentumStep {
  Flat<G> grad;
  Moments<M> momentum;
  Flat<__nv_bfloat16> update;
  RandomSite site;
  std::uint64_t first;
  float clip, beta, ahead;  // update = ahead * new momentum + own * clip * gradient
  float own;

  template <bool whole>
  __device__ void run(std::int64_t i) const {
    const Raw<G> raw_grad = grad.template read<whole>(i);
    const auto raw_m = momentum.template read<whole>(i);
    const Eight g = unpack(raw_grad);
    Eight m = unpack_moments(momentum, raw_m), u;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const float now = clip * g.half[h].v[j];
        m.half[h].v[j] = fmaf(beta, m.half[h].v[j], now);
        u.half[h].v[j] = fmaf(ahead, m.half[h].v[j], own * now);
      }
    write_new<whole>(momentum, i, m, site, first + static_cast<std::uint64_t>(i), Target::m);
    update.template write<whole>(i, round_to<__nv_bfloat16>(u));
  }
};

template <class M>
__device__ Moments<M> momentum_at(const Addresses& at, std::int64_t n) {
  if constexpr (std::is_same_v<M, E4M3Moment>)
    return {static_cast<std::uint8_t*>(at.momentum), at.momentum_scales, n};
  else
    return {static_cast<M*>(at.momentum), n};
}

template <class G, class M>
__global__ void __launch_bounds__(kBlock) momentum(const __grid_constant__ Group group, float beta, bool nesterov) {
  if (!group.state->accepted) return;
  const Addresses& at = group.of[blockIdx.y];
  MomentumStep<G, M> step{{static_cast<G*>(at.gradient), group.n},
                          momentum_at<M>(at, group.n),
                          group.update_of(blockIdx.y),
                          group.site,
                          at.first,
                          group.state->clip,
                          beta,
                          nesterov ? beta : 1.0f,
                          nesterov ? 1.0f : 0.0f};
  step.site.step = group.state->step;
  over_tiles(group, step);
}

template <class P>
struct ApplyStep {
  Flat<P> values;
  Flat<__nv_bfloat16> update, weights;
  RandomSite site;
  std::uint64_t first;
  float decay, rate;

  template <bool whole>
  __device__ void run(std::int64_t i) const {
    const Raw<__nv_bfloat16> raw_update = update.template read<whole>(i);
    const Raw<P> raw_values = values.template read<whole>(i);
    const Eight u = unpack(raw_update);
    Eight w = unpack(raw_values);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < kFour; ++j) w.half[h].v[j] = fmaf(-rate, u.half[h].v[j], decay * w.half[h].v[j]);
    const Raw<P> stored = round_new<P>(w, site, first + static_cast<std::uint64_t>(i), Target::param);
    values.template write<whole>(i, stored);
    if (weights.data) weights.template write<whole>(i, round_to<__nv_bfloat16>(unpack(stored)));
  }
};

template <class P>
__global__ void __launch_bounds__(kBlock)
    apply_update(const __grid_constant__ Group group, float scale, float weight_decay, float lr_scale) {
  if (!group.state->accepted) return;
  const Addresses& at = group.of[blockIdx.y];
  const double lr = static_cast<double>(group.state->lr) * lr_scale;
  ApplyStep<P> step{{static_cast<P*>(at.values), group.n},
                    group.update_of(blockIdx.y),
                    {at.weights, group.n},
                    group.site,
                    at.first,
                    static_cast<float>(1 - lr * (static_cast<double>(weight_decay) * group.state->decay_scale)),
                    static_cast<float>(lr * scale)};
  step.site.step = group.state->step;
  over_tiles(group, step);
}

Addresses addresses_of(const MuonMatrix& m, const __nv_bfloat16* update) {
  const auto raw = [](const Tensor& t) { return t.defined() ? t.raw() : nullptr; };
  Addresses at{raw(m.values),
               raw(m.gradient),
               raw(m.momentum),
               device_data<std::uint8_t>(m.momentum_scales),
               device_data<__nv_bfloat16>(m.weights),
               static_cast<std::uint64_t>(m.first_element),
               is_aligned(update)};
  for (const void* p : {at.values, at.gradient, at.momentum, static_cast<void*>(at.weights)})
    at.aligned = at.aligned && is_aligned(p);
  return at;
}

// Calls launch_group(grid, group) for groups of at most kMost matrices.
template <class Args, class LaunchGroup>
void over_groups(const char* op, const Args& args, const LaunchGroup& launch_group) {
  const std::int64_t n = check(op, args.matrices, args.update);
  for (const MuonMatrix& m : args.matrices)
    RING_CHECK(m.values.dtype() == args.matrices[0].values.dtype() &&
                   m.gradient.dtype() == args.matrices[0].gradient.dtype() &&
                   m.momentum.dtype() == args.matrices[0].momentum.dtype(),
               op, ": matrices of several types");
  for (std::size_t begin = 0; begin < args.matrices.size(); begin += kMost) {
    const std::size_t count = std::min(kMost, args.matrices.size() - begin);
    Group group{};
    group.n = n;
    group.update = device_data<__nv_bfloat16>(args.update) + static_cast<std::int64_t>(begin) * n;
    group.state = &state_of(op, args.state);
    group.site = args.site;
    for (std::size_t i = 0; i < count; ++i)
      group.of[i] = addresses_of(args.matrices[begin + i], group.update + static_cast<std::int64_t>(i) * n);
    launch_group(Launch{grid_of(std::min<std::int64_t>(divide_up(n, kTile), 1024), static_cast<std::int64_t>(count))},
                 group);
  }
}

// Dispatches on the momentum's type only: nvcc 13 crashed when nested lambdas chose all types at once (adamw.cu).
template <class G, class M>
void run_momentum_types(const MuonMomentum& args, const ExecContext& ctx) {
  over_groups("muon_momentum", args, [&](const Launch& shape, const Group& group) {
    launch(ctx, shape, momentum<G, M>, group, args.beta, args.nesterov);
  });
}
template <class G>
void visit_momentum(const MuonMomentum& args, const ExecContext& ctx) {
  const DType type = args.matrices[0].momentum.dtype();
  if (type == DType::u8) return run_momentum_types<G, E4M3Moment>(args, ctx);
  visit_float("muon_momentum", type, [&]<class M>() { run_momentum_types<G, M>(args, ctx); });
}

void run_momentum(const MuonMomentum& args, const ExecContext& ctx) {
  check("muon_momentum", args.matrices, args.update);
  visit_float("muon_momentum", args.matrices[0].gradient.dtype(), [&]<class G>() { visit_momentum<G>(args, ctx); });
}

void run_apply(const MuonApply& args, const ExecContext& ctx) {
  check("muon_apply", args.matrices, args.update);
  visit_float("muon_apply", args.matrices[0].values.dtype(), [&]<class P>() {
    over_groups("muon_apply", args, [&](const Launch& shape, const Group& group) {
      launch(ctx, shape, apply_update<P>, group, args.scale, args.weight_decay, args.lr_scale);
    });
  });
}

// Partial sums of a norm. Their number only depends on the length.
constexpr std::int64_t kMaxRowParts = 64, kPartLength = 8192;

// Calls f(i, v) for each pack in the thread block's share of a row. v: elements i to i + 7, with zeros past the end.
template <class F>
__device__ void over_row(const __nv_bfloat16* row, std::int64_t n, const F& f) {
  constexpr int pack = kPack<__nv_bfloat16>;
  for (std::int64_t i = thread_x() * pack; i < n; i += threads_x() * pack) f(i, load(row, i, n));
}

__global__ void __launch_bounds__(kBlock) row_squares(const __nv_bfloat16* x, std::int64_t n, double* parts) {
  double sum = 0;
  over_row(x + blockIdx.y * n, n, [&](std::int64_t, const Floats<kPack<__nv_bfloat16>>& f) {
    float some = 0;
#pragma unroll
    for (const float v : f.v) some += v * v;
    sum += static_cast<double>(some);
  });
  sum = group_sum<kBlock>(sum);
  if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlock)
    divide_rows(__nv_bfloat16* x, std::int64_t n, const double* parts, int count, float eps) {
  double square = 0;
  for (int i = 0; i < count; ++i) square += parts[blockIdx.y * static_cast<unsigned>(count) + static_cast<unsigned>(i)];
  const auto factor = static_cast<float>(1 / (sqrt(square) + static_cast<double>(eps)));
  __nv_bfloat16* row = x + blockIdx.y * n;
  over_row(row, n, [&](std::int64_t i, Floats<kPack<__nv_bfloat16>> f) {
#pragma unroll
    for (float& v : f.v) v *= factor;
    store(row, i, n, f);
  });
}

void run_unit_norm(const UnitNorm& args, const ExecContext& ctx) {
  RING_CHECK(args.x.is_contiguous() && args.x.dim(0) > 0 && args.x.dim(0) <= kMaxGridY, "unit_norm: of ",
             describe(args.x));
  const std::int64_t rows = args.x.dim(0), n = args.x.numel() / rows;
  if (n == 0) return;
  const std::int64_t count = std::min(kMaxRowParts, divide_up(n, kPartLength));
  const Tensor parts = ctx.empty({rows * count * static_cast<std::int64_t>(sizeof(double))}, DType::u8);
  double* const sums = reinterpret_cast<double*>(parts.raw());
  auto* const x = device_data<__nv_bfloat16>(args.x);
  launch(ctx, {grid_of(count, rows)}, row_squares, x, n, sums);
  launch(ctx, {grid_of(count, rows)}, divide_rows, x, n, sums, count, args.eps);
}

const bool added_muon[] = {
    muon_momentum_kernel.add(Backend::cuda, {"flat", run_momentum}),
    unit_norm_kernel.add(Backend::cuda, {"two_stage", run_unit_norm}),
    muon_apply_kernel.add(Backend::cuda, {"flat", run_apply}),
};

}  // namespace
}  // namespace ring::cuda
