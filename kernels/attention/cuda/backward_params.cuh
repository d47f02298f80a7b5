#pragma once
// Parameters of all backward kernels. A thread block owns rows of x and y and streams tiles of a and b: x, y = k, v and
// a, b = q, dout, or vice versa.

#include "kernels/attention/cuda/dropout.cuh"

namespace ring::cuda {

struct BackwardParams {
  Output dx, dy;              // gradient of x and, if keys are stationary, of y
  const float *lse2, *delta;  // [Hq,N]
  std::int64_t tokens;
  int dim, group;
  float factor, scale;  // factor: attention scale * log2(e); scale: attention scale
  BranchPass pass;
  TileSchedule work;
};

struct BackwardOperands {
  const Tensor &x, &y, &a, &b;
};
template <Stationary owner>
BackwardOperands operands_of(const AttentionBackward& args) {
  if (owner == Stationary::kv) return {args.k, args.v, args.q, args.dout};
  return {args.q, args.dout, args.k, args.v};
}

template <Stationary owner>
BackwardParams backward_params(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
                               const SchedulePlan& plan) {
  constexpr bool kKeys = owner == Stationary::kv;
  return {.dx = kKeys ? output_of(args.dk, args.carry_dk) : output_of(args.dq, args.carry_dq),
          .dy = kKeys ? output_of(args.dv, args.carry_dv) : Output{},
          .lse2 = statistics.lse2.data<float>(),
          .delta = statistics.delta.data<float>(),
          .tokens = args.q.dim(0),
          .dim = static_cast<int>(args.q.dim(2)),
          .group = static_cast<int>(args.q.dim(1) / args.k.dim(1)),
          .factor = args.scale * kLog2E,
          .scale = args.scale,
          .pass = pass,
          .work = plan.work};
}

// Parameters of kernels without TMA, which read the operands directly.
template <class T>
struct PlainBackwardParams : BackwardParams {
  HeadsOf<const T> x, y, a, b;
  float *dx_parts, *dy_parts;  // partial sums of split lists, in rows of `dim` columns
  DropoutParams dropout;
  float cap;  // soft cap * log2(e); read only by kernels that support soft caps
};
template <class T, Stationary owner>
PlainBackwardParams<T> plain_backward_params(const AttentionBackward& args, const BranchPass& pass,
                                             const RowStatistics& statistics, const SchedulePlan& plan,
                                             const SplitParts& parts) {
  const BackwardOperands o = operands_of<owner>(args);
  return {backward_params<owner>(args, pass, statistics, plan),
          heads_of<const T>(o.x),
          heads_of<const T>(o.y),
          heads_of<const T>(o.a),
          heads_of<const T>(o.b),
          device_data<float>(parts.dk),
          device_data<float>(parts.dv),
          dropout_params(args.dropout, statistics.keys),
          args.soft_cap * kLog2E};
}

}  // namespace ring::cuda
