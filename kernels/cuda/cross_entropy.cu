// One thread block per row. As much of the row as fits stays in shared memory between the pass that sums and the pass
// that writes the gradient; the rest of a very long row is read again from the L2 cache. Shared memory is used instead
// of registers, so that the TMA can fill it: two or three thread blocks share an SM, and one computes (two exponentials
// per element) while the rows of the others are loaded.
#include "kernels/cross_entropy.h"

#include "core/step_state.h"
#include "kernels/cuda/cross_entropy.cuh"
#include "kernels/cuda/device/bulk_copy.cuh"

namespace ring::cuda {
namespace {

// Maximum chunks per row, each with its own mbarrier, so that summing starts with the first chunk.
constexpr int kMaxChunks = 16;

struct LossArgs {
  const std::int32_t* targets;
  const float* weights;
  float *loss, *correct;  // correct: may be null
  const StepState* state;
  int vocab, width;
  float scale, z_loss;
  bool gradient;
  int keep, chunk;  // in packs of 16 bytes. keep: packs in shared memory; chunk: packs copied at a time
};

// Issues copies of the row's first `keep` packs, chunk by chunk. All threads must call it.
template <class T>
__device__ void fetch(T* kept, const Span<T>& span, int keep, int chunk, std::uint64_t* barriers) {
  if constexpr (kBulkCopy) {
    if (threadIdx.x == 0) {
      for (int c = 0; c * chunk < keep; ++c) init_barrier(barriers + c);
      fence_barrier_init();
      for (int c = 0, begin = 0; begin < keep; ++c, begin += chunk)
        bulk_copy(kept + begin * kPack<T>, span.body(begin), static_cast<std::uint32_t>(min(chunk, keep - begin)) * 16u,
                  barriers + c);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < keep; i += static_cast<int>(blockDim.x))
      store_pack(kept + i * kPack<T>, load_pack<T>(span.body(i)));
  }
  __syncthreads();
}

template <class T>
__device__ LogSum sum_row(const Span<T>& span, const T* kept, int keep, int chunk, std::uint64_t* barriers) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  LogSum sum;
  for (int begin = 0, c = 0; begin < keep; begin += chunk, ++c) {
    wait_barrier(barriers + c, 0);
    const int end = min(keep, begin + chunk);
    for (int i = begin + thread; i < end; i += threads) sum.add(load_pack<T>(kept + i * kPack<T>));
  }
  from_cache(span, keep, span.packs, [&](int, const Pack<T>& p) { sum.add(p); });
  for (int i = thread; i < span.singles(); i += threads) sum.add(to_float(span.row[span.single(i)]));
  return of_block(sum);
}

template <class T>
__global__ void __launch_bounds__(1024) cross_entropy_rows(RowsOf<T> rows, LossArgs a) {
  extern __shared__ uint4 shared[];
  __shared__ std::uint64_t barriers[kMaxChunks];
  T* kept = reinterpret_cast<T*>(shared);
  T* row = rows[blockIdx.x];
  const int target = a.targets[blockIdx.x];
  if (target == kIgnoreTarget) {
    if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;
    if (threadIdx.x == 0 && a.correct) a.correct[blockIdx.x] = 0;
    if (a.gradient) zero(row, a.width);
    return;
  }
  const Span<T> span(row, a.vocab);
  const int keep = min(span.packs, a.keep);
  fetch(kept, span, keep, a.chunk, barriers);
  // A kernel cannot report that a target is outside the vocabulary. The loss of such a target becomes NaN, and the step
  // is rejected because its loss is not finite.
  const float nan = __int_as_float(0x7fffffff);
  const bool known = target >= 0 && target < a.vocab;
  // Reads the target's logit before the gradient overwrites the row.
  const float logit = threadIdx.x != 0 ? 0.0f : known ? to_float(row[target]) : nan;
  const float weight = a.weights ? a.weights[blockIdx.x] : 1.0f;
  const LogSum sum = sum_row(span, kept, keep, a.chunk, barriers);
  const float lse = sum.max + logf(sum.sum);
  if (threadIdx.x == 0) a.loss[blockIdx.x] = weight * (lse - logit + a.z_loss * lse * lse);
  if (threadIdx.x == 0 && a.correct) a.correct[blockIdx.x] = logit >= sum.max;
  if (!a.gradient) return;
  const float scale = (known ? a.scale : nan) * weight * (a.state ? gradient_scale(*a.state) : 1.0f);
  write_gradient(span, kept, keep, target, Gradient{sum.max, scale * (1.0f + 2.0f * a.z_loss * lse) / sum.sum, scale});
  zero(row + a.vocab, a.width - a.vocab);
}

// Uses three thread blocks per SM if a row fits into a third of the SM's shared memory, two if it fits into half, else
// one with 1024 threads: faster than clusters of blocks that share a row and wait for each other.
struct Plan {
  int keep, chunk, threads;
};
Plan plan(std::int64_t packs, const ExecContext& ctx) {
  constexpr int reserved = 2048;  // bytes per thread block: CUDA's own, and the kernel's static shared memory
  const int most = device_attribute(ctx, cudaDevAttrMaxSharedMemoryPerBlockOptin) - reserved;
  const int whole = device_attribute(ctx, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  const int half = whole / 2 - reserved, third = whole / 3 - reserved;
  const auto keep = static_cast<int>(std::min<std::int64_t>(packs, most / 16));
  int threads = 64;
  while (threads < 512 && threads * 4 < packs) threads *= 2;
  if (threads == 512 && keep * 16 <= third) threads = 320;  // registers suffice for three blocks of 320 threads
  if (keep * 16 > half) threads = 1024;
  return {keep, threads * std::max(1, static_cast<int>(divide_up(keep, std::int64_t{threads} * kMaxChunks))), threads};
}

template <class T>
void run_rows(const RowsOf<T>& rows, LossArgs a, const ExecContext& ctx) {
  const Plan p = plan(a.vocab / kPack<T>, ctx);
  a.keep = p.keep;
  a.chunk = p.chunk;
  const std::size_t shared_bytes = static_cast<std::size_t>(p.keep) * 16;
  launch(ctx, {grid_of(rows.count), static_cast<unsigned>(p.threads), shared_bytes}, cross_entropy_rows<T>, rows, a);
}

void run_cross_entropy(const CrossEntropy& args, const ExecContext& ctx) {
  const char* op = "cross_entropy";
  RING_CHECK(args.logits.defined() && args.logits.shape().size() == 2, op, ": logits are ", describe(args.logits));
  const std::int64_t rows = args.logits.dim(0), width = args.logits.dim(1);
  RING_CHECK(args.vocab > 0 && args.vocab <= width, op, ": vocab ", args.vocab, " of ", width, " columns");
  RING_CHECK(width <= INT32_MAX && rows <= INT32_MAX, op, ": logits are ", describe(args.logits));
  check_numel(op, "targets", args.targets, rows);
  check_numel(op, "loss", args.loss, rows);
  if (args.weights.defined()) check_numel(op, "weights", args.weights, rows);
  if (args.correct.defined()) check_numel(op, "correct", args.correct, rows);
  const LossArgs a{.targets = args.targets.data<std::int32_t>(),
                   .weights = device_data<float>(args.weights),
                   .loss = args.loss.data<float>(),
                   .correct = device_data<float>(args.correct),
                   .state = device_state(op, args.state),
                   .vocab = static_cast<int>(args.vocab),
                   .width = static_cast<int>(width),
                   .scale = args.scale,
                   .z_loss = args.z_loss,
                   .gradient = args.gradient,
                   .keep = 0,
                   .chunk = 0};
  visit_float(op, args.logits.dtype(), [&]<class T>() { run_rows(device_rows<T>(op, "logits", args.logits), a, ctx); });
}

const bool added_cross_entropy = cross_entropy_kernel.add(Backend::cuda, {"row_in_shared", run_cross_entropy});

}  // namespace
}  // namespace ring::cuda
