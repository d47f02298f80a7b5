#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"
#include "kernels/linear_attention/gated_delta.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kWork = 40;  // per head and row, in operations of 0.2 ns (kPartWork)

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

template <class Args>
std::int64_t checked_heads(const char* op, const Args& a, const Tensor& gates) {
  const std::int64_t heads = a.log_decay.numel();
  check_shape(op, "ab", a.ab, {a.ab.dim(0), 2 * heads});
  check_numel(op, "log_decay", a.log_decay, heads);
  check_numel(op, "dt_bias", a.dt_bias, heads);
  check_shape(op, "gates", gates, a.ab.shape());
  return heads;
}

void run_delta_gates(const DeltaGates& args, const ExecContext& ctx) {
  const std::int64_t heads = checked_heads("delta_gates", args, args.gates);
  const Rows ab = rows_of("delta_gates", "ab", args.ab), gates = rows_of("delta_gates", "gates", args.gates);
  const float *log_decay = args.log_decay.data<float>(), *bias = args.dt_bias.data<float>(), max_beta = args.max_beta;
  ctx.stream.pool().parallel_for(ab.count, row_grain(kWork * heads), [=](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < heads; ++h) {
        gates[n][h] = -std::exp(log_decay[h]) * softplus(ab[n][h] + bias[h]);
        gates[n][heads + h] = max_beta * sigmoid_fast(ab[n][heads + h]);
      }
  });
}

// Computes da = dg * -exp(log_decay) sigmoid(a + dt_bias), db = dbeta * beta (1 - sigmoid(b)).
void run_delta_gates_backward(const DeltaGatesBackward& args, const ExecContext& ctx) {
  constexpr const char* op = "delta_gates_backward";
  const std::int64_t heads = checked_heads(op, args, args.dgates);
  const Rows ab = rows_of(op, "ab", args.ab), dgates = rows_of(op, "dgates", args.dgates);
  const Rows dab = args.dab.defined() ? rows_of(op, "dab", args.dab) : Rows{};
  const float *log_decay = args.log_decay.data<float>(), *bias = args.dt_bias.data<float>();
  const std::int64_t grain = row_grain(kWork * heads);
  const Partials sums(ctx, part_count(ctx.stream.pool(), ab.count, grain), 2 * heads);  // dlog_decay, then ddt_bias
  const auto store = [&](float& to, float value) { to = args.factor_ab == 0 ? value : args.factor_ab * to + value; };
  ctx.stream.pool().parallel_for(ab.count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* sum = sums[thread];
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < heads; ++h) {
        const float x = ab[n][h] + bias[h], rate = -std::exp(log_decay[h]), s = sigmoid_fast(ab[n][heads + h]);
        const float da = dgates[n][h] * rate * sigmoid_fast(x);
        sum[h] += dgates[n][h] * rate * softplus(x);
        sum[heads + h] += da;
        if (!dab.data) continue;
        store(dab[n][h], da);
        store(dab[n][heads + h], dgates[n][heads + h] * args.max_beta * s * (1 - s));
      }
  });
  if (args.dlog_decay.defined()) sums.add_to(args.dlog_decay.data<float>(), args.factor_log_decay, 0, heads);
  if (args.ddt_bias.defined()) sums.add_to(args.ddt_bias.data<float>(), args.factor_dt_bias, heads, heads);
}

const bool added_delta_gates[] = {delta_gates_kernel.add(Backend::cpu, {"rows", run_delta_gates}),
                                  delta_gates_backward_kernel.add(Backend::cpu, {"rows", run_delta_gates_backward})};

}  // namespace
}  // namespace ring::cpu
