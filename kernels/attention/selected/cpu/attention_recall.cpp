#include "kernels/attention/selected/attention_recall.h"

#include <cmath>

#include "kernels/attention/blocks.h"
#include "kernels/attention/head_segment.h"
#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

void run_attention_recall(const AttentionRecall& a, const ExecContext& ctx) {
  check(a);
  const std::int64_t rows = a.kept.dim(1), heads = a.kept.dim(0);
  const float *kept = a.kept.data<float>(), *dense = a.dense.data<float>();
  float* out = a.out.data<float>();
  ctx.stream.pool().parallel_for(rows, row_grain(heads), [=](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < heads; ++h) {
        const float total = dense[h * rows + n];
        const bool sees = std::isfinite(total);
        out[n * 2 * heads + h] = sees ? std::exp(kept[h * rows + n] - total) : 0;
        out[(n * 2 + 1) * heads + h] = sees ? 1 : 0;
      }
  });
}

// The queries of block i in this call, and the keys of their document.
struct BlockRow {
  std::int64_t first, rows;     // position of the document's first key; queries of the block
  std::int64_t before, inside;  // keys before the block; keys of the block before the first of these queries

  BlockRow(const SegmentPair& p, std::int32_t size, std::int32_t i) : first(p.k_first) {
    const std::int32_t begin = std::max(i * size, p.q_first), start = std::max(i * size, p.k_first);
    rows = std::min((i + 1) * size, p.q_end) - begin;
    before = start - p.k_first, inside = begin - start;
  }
  // Returns the number of causal pairs with keys of block i itself.
  std::int64_t causal() const { return rows * inside + rows * (rows + 1) / 2; }
  // Returns the number of pairs with keys of block j < i.
  std::int64_t pairs(std::int64_t size, std::int64_t j) const {
    return rows * ((j + 1) * size - std::max(j * size, first));
  }
};

void run_selected_pairs(const SelectedPairs& a, const ExecContext& ctx) {
  check(a);
  const SelectedBlocks selected(a.selection);
  const std::int32_t size = a.pattern.blocks->block();
  float* const out = a.out.data<float>();
  for (const SegmentPair& p :
       segment_pairs_of(passes_of(a.pattern).front(), a.pattern, a.queries, a.keys, a.selection.rows)) {
    if (p.q_first == p.q_end) continue;
    const std::int64_t first = p.q_first / size, blocks = (p.q_end - 1) / size + 1 - first;
    ctx.stream.pool().parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (auto i = static_cast<std::int32_t>(first + begin); i < first + end; ++i) {
        const BlockRow row(p, size, i);
        std::int64_t kept = selected.heads * row.causal();
        for (std::int32_t head = 0; head < selected.heads; ++head)
          for (std::int32_t n = 0, end = selected.first_from(p.block_row + i, head, i); n < end; ++n)
            kept += row.pairs(size, selected.row(p.block_row + i, head)[n]);
        float* const to = out + std::int64_t{p.block_row + i} * 2;
        to[0] = static_cast<float>(kept);
        to[1] = static_cast<float>(selected.heads * (row.rows * row.before + row.causal()));
      }
    });
  }
}

const bool added[] = {attention_recall_kernel.add(Backend::cpu, {"rows", run_attention_recall}),
                      selected_pairs_kernel.add(Backend::cpu, {"rows", run_selected_pairs})};

}  // namespace
}  // namespace ring::cpu
