// The forward of attention, block by block with a running maximum and sum (Milakov and Gimelshein 2018): no row of
// scores is ever held as a whole. One task is one block of queries of one head.

#include "kernels/attention/attention.h"
#include "kernels/attention/cpu/common.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

struct Task {
  std::int64_t start, length;  // the sequence's rows
  std::int64_t head, query;    // first query row of the block, within the sequence
  std::int64_t cost;           // tiles of scores
};

struct Problem {
  Heads q, k, v, out;
  float* lse;
  float scale;
  bool causal;
};

// A block of queries on its way through the keys.
struct Block {
  std::int64_t rows;
  float max[kQueryBlock], sum[kQueryBlock];
  float* out;
  std::int64_t out_stride, dim;
};

void rescale(float* row, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; ++i) row[i] *= factor;
}

// One row of a tile: its first `seen` scores become weights, the others 0.
void softmax_row(Block& block, std::int64_t r, float* scores, std::int64_t seen, std::int64_t width) {
  const std::int64_t padded = whole_vectors(seen);
  std::fill(scores + seen, scores + padded, kMinusInf);
  const float old_max = block.max[r], new_max = std::max(old_max, row_max(scores, padded));
  const float shift = new_max == kMinusInf ? 0 : new_max;
  const float factor = old_max == kMinusInf ? 0 : exp_fast(old_max - shift);
  if (factor != 1 && old_max != kMinusInf) rescale(block.out + r * block.out_stride, block.dim, factor);
  block.sum[r] = block.sum[r] * factor + row_exp(scores, padded, shift);
  block.max[r] = new_max;
  if (padded < width) std::fill(scores + padded, scores + width, 0.0f);
}

void finish(Block& block, float* lse) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const bool empty = block.sum[r] == 0;
    rescale(block.out + r * block.out_stride, block.dim, empty ? 0 : 1 / block.sum[r]);
    lse[r] = empty ? kMinusInf : block.max[r] + std::log(block.sum[r]);
  }
}

void run_task(const Problem& p, const Task& t, float* scores) {
  const std::int64_t first = t.start + t.query, kv_head = t.head / (p.q.heads / p.k.heads);
  Block block{.rows = std::min(kQueryBlock, t.length - t.query),
              .out = p.out.at(first, t.head),
              .out_stride = p.out.row,
              .dim = p.q.dim};
  std::fill_n(block.max, kQueryBlock, kMinusInf);
  std::fill_n(block.sum, kQueryBlock, 0.0f);
  const std::int64_t keys = p.causal ? t.query + block.rows : t.length;
  for (std::int64_t key = 0; key < keys; key += kKeyBlock) {
    const std::int64_t width = std::min(kKeyBlock, keys - key);
    gemm({.transpose_b = true,
          .m = block.rows,
          .n = width,
          .k = p.q.dim,
          .a = p.q.at(first, t.head),
          .lda = p.q.row,
          .b = p.k.at(t.start + key, kv_head),
          .ldb = p.k.row,
          .c = scores,
          .ldc = kKeyBlock,
          .alpha = p.scale});
    for (std::int64_t r = 0; r < block.rows; ++r)
      softmax_row(block, r, scores + r * kKeyBlock, visible(p.causal, t.query + r, key, width), width);
    gemm({.m = block.rows,
          .n = p.q.dim,
          .k = width,
          .a = scores,
          .lda = kKeyBlock,
          .b = p.v.at(t.start + key, kv_head),
          .ldb = p.v.row,
          .c = block.out,
          .ldc = block.out_stride,
          .beta = key == 0 ? 0.0f : 1.0f});
  }
  finish(block, p.lse + t.head * p.q.tokens + first);
}

std::vector<Task> make_tasks(const Attention& args, std::int64_t heads) {
  std::vector<Task> tasks;
  for (std::size_t b = 0; b + 1 < args.offsets.size(); ++b) {
    const std::int64_t start = args.offsets[b], length = args.offsets[b + 1] - start;
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t query = 0; query < length; query += kQueryBlock) {
        const std::int64_t keys = args.causal ? std::min(length, query + kQueryBlock) : length;
        tasks.push_back({start, length, h, query, blocks(keys, kKeyBlock)});
      }
  }
  return tasks;
}

void run_attention(const Attention& args, const Context& ctx) {
  constexpr const char* op = "attention";
  Problem p{heads_of(args.q, op, "q"),
            heads_of(args.k, op, "k"),
            heads_of(args.v, op, "v"),
            heads_of(args.out, op, "out"),
            nullptr,
            args.scale,
            args.causal};
  check_geometry(p.q, p.k, op);
  check_same(p.k, p.v, op, "k and v");
  check_same(p.q, p.out, op, "q and out");
  check_offsets(args.offsets, p.q.tokens, op);
  RING_CHECK(args.lse.shape() == (Shape{p.q.heads, p.q.tokens}) && args.lse.contiguous(), op, ": lse is ",
             describe(args.lse), " for ", p.q.heads, " heads and ", p.q.tokens, " tokens");
  p.lse = args.lse.data<float>();
  for_rows_outside(args.offsets, p.q.tokens, [&](std::int64_t first, std::int64_t count) {
    zero_rows(p.out, first, count);
    for (std::int64_t h = 0; h < p.q.heads; ++h) std::fill_n(p.lse + h * p.q.tokens + first, count, kMinusInf);
  });
  ThreadPool& pool = ctx.stream.pool();
  const Tensor scratch = ctx.empty({pool.size(), kTile});
  float* scores = scratch.data<float>();
  std::vector<Task> tasks = make_tasks(args, p.q.heads);
  share_out(tasks, pool, [&](const Task& t, int thread) { run_task(p, t, scores + thread * kTile); });
}

const bool added = attention_kernel.add(Backend::cpu, {"blocked", run_attention});

}  // namespace
}  // namespace ring::cpu
