#include "kernels/attention/selected/attention_recall.h"

#include "kernels/attention/blocks.h"
#include "kernels/attention/cuda/documents.cuh"
#include "kernels/attention/head_segment.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

__global__ void __launch_bounds__(kBlock)
    shares(const float* kept, const float* dense, float* out, std::int64_t rows, std::int64_t heads) {
  for (std::int64_t i = blockIdx.x * std::int64_t{kBlock} + threadIdx.x; i < rows * heads;
       i += gridDim.x * std::int64_t{kBlock}) {
    const std::int64_t n = i / heads, h = i % heads;
    const float total = dense[h * rows + n];
    const bool sees = isfinite(total);
    out[n * 2 * heads + h] = sees ? expf(kept[h * rows + n] - total) : 0.0f;
    out[(n * 2 + 1) * heads + h] = sees ? 1.0f : 0.0f;
  }
}

void run_attention_recall(const AttentionRecall& a, const ExecContext& ctx) {
  check(a);
  launch(ctx, elements(ctx, a.kept.numel()), shares, device_data<float>(a.kept), device_data<float>(a.dense),
         device_data<float>(a.out), a.kept.dim(1), a.kept.dim(0));
}

// Counts the kept pairs and the pairs of causal dense attention: one warp per block of queries.
__global__ void __launch_bounds__(kBlock) count_pairs(const __grid_constant__ Documents<SegmentPair> documents,
                                                      SelectedBlocks selected, int size, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int at = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (at >= documents.before[documents.count]) return;
  const int d = documents.find(at);
  const SegmentPair p = documents.rows[d];
  const int i = p.q_first / size + at - documents.before[d];
  const int first = max(i * size, p.q_first), start = max(i * size, p.k_first);
  const std::int64_t rows = min((i + 1) * size, p.q_end) - first, before = start - p.k_first;
  long long seen = 0;  // kept keys before the block, summed over heads
  for (int head = 0; head < selected.heads; ++head)
    for (int n = lane, end = selected.first_from(p.block_row + i, head, i); n < end; n += kWarp) {
      const auto j = static_cast<int>(selected.row(p.block_row + i, head)[n]);
      seen += (j + 1) * size - max(j * size, p.k_first);
    }
  seen = warp_sum(seen);
  if (lane) return;
  const std::int64_t causal = rows * (first - start) + rows * (rows + 1) / 2, heads = selected.heads;
  float* const to = out + std::int64_t{p.block_row + i} * 2;
  to[0] = static_cast<float>(rows * seen + heads * causal);
  to[1] = static_cast<float>(heads * (rows * before + causal));
}

void run_selected_pairs(const SelectedPairs& a, const ExecContext& ctx) {
  check(a);
  const std::int32_t size = a.pattern.blocks->block();
  const auto blocks = [&](const SegmentPair& p) {
    return p.q_first == p.q_end ? 0 : (p.q_end - 1) / size + 1 - p.q_first / size;
  };
  for_documents(segment_pairs_of(passes_of(a.pattern).front(), a.pattern, a.queries, a.keys, a.selection.rows), blocks,
                [&](const Documents<SegmentPair>& some) {
                  launch(ctx, {grid_of(divide_up(some.before[some.count], kWarps))}, count_pairs, some,
                         SelectedBlocks(a.selection), size, device_data<float>(a.out));
                });
}

const bool added_attention_recall[] = {attention_recall_kernel.add(Backend::cuda, {"elements", run_attention_recall}),
                                       selected_pairs_kernel.add(Backend::cuda, {"warps", run_selected_pairs})};

}  // namespace
}  // namespace ring::cuda
