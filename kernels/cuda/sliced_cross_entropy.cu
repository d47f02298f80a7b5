// One thread block per row. A row cannot stay in shared memory, because the ranks exchange statistics between the two
// kernels: it is read once for its statistics, and again for the gradient, which replaces it.
#include "kernels/sliced_cross_entropy.h"

#include "core/step_state.h"
#include "kernels/cuda/cross_entropy.cuh"

namespace ring::cuda {
namespace {

struct Columns {
  int first, used, width, vocab;
};

template <class T>
__global__ void __launch_bounds__(1024)
    statistics_of_rows(RowsOf<T> rows, Columns c, const std::int32_t* targets, float* out) {
  const T* row = rows[blockIdx.x];
  out += std::int64_t{blockIdx.x} * kLogitStatistics;
  const int target = targets[blockIdx.x], at = target - c.first;
  if (target == kIgnoreTarget) {
    if (threadIdx.x < kLogitStatistics) out[threadIdx.x] = 0;
    return;
  }
  const Span<T> span(rows[blockIdx.x], c.used);
  LogSum sum;
  from_cache(span, 0, span.packs, [&](int, const Pack<T>& p) { sum.add(p); });
  for (int i = static_cast<int>(threadIdx.x); i < span.singles(); i += static_cast<int>(blockDim.x))
    sum.add(to_float(row[span.single(i)]));
  sum = of_block(sum);
  if (threadIdx.x != 0) return;
  // This kernel cannot report a target outside the vocabulary. It writes NaN instead, so that the step is rejected.
  const bool known = target >= 0 && target < c.vocab;
  out[0] = sum.max;
  out[1] = sum.sum;
  out[2] = !known ? __int_as_float(0x7fffffff) : at >= 0 && at < c.used ? to_float(row[at]) : 0.0f;
}

struct SlicedLossArgs {
  const std::int32_t* targets;
  const float *weights, *statistics;
  float *loss, *correct;  // correct: may be null
  const StepState* state;
  int parts;
  float scale, z_loss;
  bool gradient;
};

// Statistics of the whole row. Every thread merges the parts of all ranks in the same order, so
// all threads get identical bits.
struct Merged {
  float max, sum = 0, target = 0;
  __device__ Merged(const float* statistics, int parts, std::int64_t stride) : max(statistics[0]) {
    for (int p = 1; p < parts; ++p) max = fmaxf(max, statistics[p * stride]);
    for (int p = 0; p < parts; ++p) {
      sum += statistics[p * stride + 1] * exp_fast(statistics[p * stride] - max);
      target += statistics[p * stride + 2];
    }
  }
};

template <class T>
__global__ void __launch_bounds__(1024) sliced_loss_of_rows(RowsOf<T> rows, Columns c, SlicedLossArgs a) {
  T* row = rows[blockIdx.x];
  const int target = a.targets[blockIdx.x];
  if (target == kIgnoreTarget) {
    if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
    if (threadIdx.x == 0 && a.correct) a.correct[blockIdx.x] = 0;
    if (a.gradient) zero(row, c.width);
    return;
  }
  const Merged m(a.statistics + std::int64_t{blockIdx.x} * kLogitStatistics, a.parts, rows.count * kLogitStatistics);
  const float lse = m.max + logf(m.sum), weight = a.weights ? a.weights[blockIdx.x] : 1.0f;
  if (threadIdx.x == 0) a.loss[blockIdx.x] = weight * (lse - m.target + a.z_loss * lse * lse);
  if (threadIdx.x == 0 && a.correct) a.correct[blockIdx.x] = m.target >= m.max;
  if (!a.gradient) return;
  const bool known = target >= 0 && target < c.vocab;
  const float scale =
      (known ? a.scale : __int_as_float(0x7fffffff)) * weight * (a.state ? gradient_scale(*a.state) : 1.0f);
  write_gradient(Span<T>(row, c.used), static_cast<const T*>(nullptr), 0, target - c.first,
                 Gradient{m.max, scale * (1.0f + 2.0f * a.z_loss * lse) / m.sum, scale});
  zero(row + c.used, c.width - c.used);
}

Columns columns_of(const char* op, const Tensor& logits, std::int64_t first, std::int64_t vocab) {
  const std::int64_t width = logits.dim(1);
  RING_CHECK(first + width <= INT32_MAX && vocab <= INT32_MAX && logits.dim(0) <= INT32_MAX, op, ": logits are ",
             describe(logits), ", from column ", first, " of ", vocab, " on");
  return {static_cast<int>(first), static_cast<int>(columns_in_use(width, first, vocab)), static_cast<int>(width),
          static_cast<int>(vocab)};
}

// Returns a launch with one thread block per row. A thread block has 64 to 512 threads: as few as possible with
// at most four packs per thread.
template <class T>
Launch blocks_of(std::int64_t rows, int columns) {
  unsigned threads = 64;
  while (threads < 512 && threads * 4 < static_cast<unsigned>(columns) / kPack<T>) threads *= 2;
  return {grid_of(rows), threads};
}

void run_statistics(const LogitStatistics& args, const ExecContext& ctx) {
  const char* op = "logit_statistics";
  check(args);
  const Columns c = columns_of(op, args.logits, args.first, args.vocab);
  visit_float(op, args.logits.dtype(), [&]<class T>() {
    const RowsOf<T> rows = device_rows<T>(op, "logits", args.logits);
    launch(ctx, blocks_of<T>(rows.count, c.used), statistics_of_rows<T>, rows, c, args.targets.data<std::int32_t>(),
           args.out.data<float>());
  });
}

void run_loss(const SlicedCrossEntropy& args, const ExecContext& ctx) {
  const char* op = "sliced_cross_entropy";
  check(args);
  const Columns c = columns_of(op, args.logits, args.first, args.vocab);
  const SlicedLossArgs a{.targets = args.targets.data<std::int32_t>(),
                         .weights = device_data<float>(args.weights),
                         .statistics = args.statistics.data<float>(),
                         .loss = args.loss.data<float>(),
                         .correct = device_data<float>(args.correct),
                         .state = device_state(op, args.state),
                         .parts = static_cast<int>(args.statistics.dim(0)),
                         .scale = args.scale,
                         .z_loss = args.z_loss,
                         .gradient = args.gradient};
  visit_float(op, args.logits.dtype(), [&]<class T>() {
    const RowsOf<T> rows = device_rows<T>(op, "logits", args.logits);
    launch(ctx, blocks_of<T>(rows.count, args.gradient ? c.used : 1), sliced_loss_of_rows<T>, rows, c, a);
  });
}

const bool added_sliced_cross_entropy[] = {
    logit_statistics_kernel.add(Backend::cuda, {"rows", run_statistics}),
    sliced_cross_entropy_kernel.add(Backend::cuda, {"rows", run_loss}),
};

}  // namespace
}  // namespace ring::cuda
