// The forward of attention, block by block with a running maximum and sum (Milakov and Gimelshein 2018): no row of
// scores is ever held as a whole. One task is one block of queries of one head.

#include "kernels/attention/cpu/tile_product.h"
#include "kernels/attention/cpu/tiles.h"
#include "kernels/attention/head_segment.h"
#include "kernels/attention/passes.h"
#include "kernels/cpu/transpose.h"

namespace ring::cpu {
namespace {

struct Problem {
  Heads q, k, v, out, carry;  // carry: no data where there is none
  float* lse;
  float scale;
  const Pattern& pattern;
  const BranchPass& pass;

  std::int64_t group() const { return q.heads / k.heads; }
};

struct Task {
  const SegmentPair* piece;
  std::int64_t head;
  std::int32_t row, row_end;  // of the head segment's queries
  std::int64_t cost;          // scores per row
};

// A block of queries on its way through the keys.
struct Block {
  std::int64_t rows, dim;
  Rows out, lse;       // row 0: the block's first
  bool merged = true;  // `out` holds something already
  float max[kQueryBlock], sum[kQueryBlock];
};

void rescale(float* row, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; ++i) row[i] *= factor;
}

// A carried row counts as one key whose score is its log-sum-exp and whose value is the row.
void start(Block& b, const Rows& carry) {
  std::fill_n(b.max, b.rows, kMinusInf);
  std::fill_n(b.sum, b.rows, 0.0f);
  b.merged = false;
  for (std::int64_t r = 0; carry.data && r < b.rows; ++r) {
    b.max[r] = *b.lse.at(r);
    b.sum[r] = b.max[r] == kMinusInf ? 0.0f : 1.0f;
    b.merged |= b.sum[r] != 0;
  }
  for (std::int64_t r = 0; b.merged && r < b.rows; ++r) {
    if (b.sum[r] == 0)
      std::fill_n(b.out.at(r), b.dim, 0.0f);
    else if (carry.at(r) != b.out.at(r))
      std::copy_n(carry.at(r), b.dim, b.out.at(r));
  }
}

// One row of a tile: the scores that it sees become weights, the others 0.
void softmax_row(Block& b, std::int64_t r, float* scores, const Seen& seen, std::int64_t width) {
  float* from = scores + seen.begin();
  const std::int64_t n = seen.padded_end() - seen.begin();
  seen.fill(scores, kMinusInf);
  const float old_max = b.max[r], new_max = std::max(old_max, row_max(from, n));
  const float shift = new_max == kMinusInf ? 0 : new_max;
  const float factor = old_max == kMinusInf ? 0 : exp_fast(old_max - shift);
  if (factor != 1 && old_max != kMinusInf) rescale(b.out.at(r), b.dim, factor);
  b.sum[r] = b.sum[r] * factor + row_exp(from, n, shift);
  b.max[r] = new_max;
  seen.clear_rest(scores, width);
}

void finish(Block& b) {
  for (std::int64_t r = 0; r < b.rows; ++r) {
    const bool empty = b.sum[r] == 0;
    if (empty)
      std::fill_n(b.out.at(r), b.dim, 0.0f);
    else
      rescale(b.out.at(r), b.dim, 1 / b.sum[r]);
    *b.lse.at(r) = empty ? kMinusInf : b.max[r] + std::log(b.sum[r]);
  }
}

// Where one thread works: a tile's scores, and its keys, a row for each dimension.
struct Scratch {
  float *scores, *keys;
  static std::int64_t floats(std::int64_t dim) { return kTile + dim * kKeyBlock; }
  explicit Scratch(float* p) : scores(p), keys(p + kTile) {}
};

// Keys [key, key + width) of the head segment, and what the block's rows [row, row_end) may see of them.
struct Tile {
  const HeadSegment& segment;
  std::int32_t key, width;
  const float* values;
  std::int64_t value_stride;
};

// Scores of some rows of a block, and what they add to it.
void add_strip(const Problem& p, const Task& t, const Tile& tile, Block& b, std::int32_t row, std::int32_t end,
               const Scratch& scratch) {
  const HeadSegment& s = tile.segment;
  const Extent seen = seen_by<Stationary::q>(s, row, end, tile.key, tile.width);
  const Rows q = rows_of(p.q, t.head, s.q_row, s.rate);
  const std::int64_t first = row - t.row;
  float* scores = scratch.scores + first * kKeyBlock;
  tile_product({.m = end - row,
                .n = (seen.count + 7) / 8 * 8,
                .k = b.dim,
                .a = q.at(row),
                .a_row = q.stride,
                .b = scratch.keys + seen.first,
                .ldb = kKeyBlock,
                .c = scores + seen.first,
                .ldc = kKeyBlock,
                .alpha = p.scale});
  const bool all = s.bounds<Stationary::q>(row, end).all(tile.key, tile.width);
  for (std::int32_t r = row; r < end; ++r)
    softmax_row(b, r - t.row, scores + (r - row) * kKeyBlock,
                all ? Seen(tile.width) : Seen(s.columns<Stationary::q>(r), tile.key, tile.width), tile.width);
  tile_product({.m = end - row,
                .n = b.dim,
                .k = seen.count,
                .a = scores + seen.first,
                .a_row = kKeyBlock,
                .b = tile.values + seen.first * tile.value_stride,
                .ldb = tile.value_stride,
                .c = b.out.at(first),
                .ldc = b.out.stride,
                .beta = b.merged ? 1.0f : 0.0f});
}

void add_tile(const Problem& p, const Task& t, const HeadSegment& s, Block& b, std::int32_t key, std::int32_t width,
              const Scratch& scratch) {
  const std::int64_t kv_head = t.head / p.group();
  const Rows k = rows_of(p.k, kv_head, s.k_row, s.rate), v = rows_of(p.v, kv_head, s.k_row, s.rate);
  transpose(k.at(key), k.stride, width, b.dim, scratch.keys, kKeyBlock);
  const Tile tile{s, key, width, v.at(key), v.stride};
  for_strips(t.row, t.row_end,
             [&](std::int32_t row, std::int32_t end) { add_strip(p, t, tile, b, row, end, scratch); });
  b.merged = true;
}

void run_task(const Problem& p, const Task& t, const Scratch& scratch) {
  const View view(p.pass, p.pattern, *t.piece, static_cast<std::int32_t>(t.head / p.group()));
  const HeadSegment& s = view.segment;
  const std::int64_t first = s.q_row + std::int64_t{t.row} * s.rate;
  Block block{.rows = t.row_end - t.row,
              .dim = p.q.dim,
              .out = rows_of(p.out, t.head, first, s.rate),
              .lse = {p.lse + t.head * p.q.tokens, first, s.rate}};
  start(block, rows_of(p.carry, t.head, first, s.rate));
  for_runs<Stationary::q>(view, t.row, t.row_end, [&](std::int32_t key, std::int32_t end) {
    for (; key < end; key += kKeyBlock)
      add_tile(p, t, s, block, key, std::min<std::int32_t>(kKeyBlock, end - key), scratch);
  });
  finish(block);
}

std::vector<Task> make_tasks(const Problem& p, const std::vector<SegmentPair>& pieces) {
  std::vector<Task> tasks;
  for (const SegmentPair& piece : pieces)
    for (std::int64_t h = 0; h < p.q.heads; ++h) {
      const View view(p.pass, p.pattern, piece, static_cast<std::int32_t>(h / p.group()));
      for_blocks(view.segment.q_first, view.segment.q_end, kQueryBlock, [&](std::int32_t row, std::int32_t end) {
        std::int64_t cost = 0;
        for_runs<Stationary::q>(view, row, end, [&](std::int32_t key, std::int32_t key_end) { cost += key_end - key; });
        tasks.push_back({&piece, h, row, end, cost});
      });
    }
  return tasks;
}

void run_pass(const Attention& args, const BranchPass& pass, float* scratch, ThreadPool& pool) {
  const Problem p{.q = heads_of(args.q),
                  .k = heads_of(args.k),
                  .v = heads_of(args.v),
                  .out = heads_of(args.out),
                  .carry = args.carry.defined() ? heads_of(args.carry) : Heads{},
                  .lse = args.lse.data<float>(),
                  .scale = args.scale,
                  .pattern = args.pattern,
                  .pass = pass};
  const std::vector<SegmentPair> pieces = segment_pairs_of(pass, args.pattern, args.queries, args.keys);
  share_out(make_tasks(p, pieces), pool,
            [&](const Task& t, int thread) { run_task(p, t, Scratch(scratch + thread * Scratch::floats(p.q.dim))); });
}

void fill_lse(const Tensor& lse, std::int64_t first, std::int64_t count) {
  const std::int64_t tokens = lse.dim(1);
  for (std::int64_t h = 0; h < lse.dim(0); ++h) std::fill_n(lse.data<float>() + h * tokens + first, count, kMinusInf);
}

void run_attention(const Attention& args, const ExecContext& ctx) {
  check(args);
  const Heads out = heads_of(args.out);
  ThreadPool& pool = ctx.stream.pool();
  const Tensor scratch = ctx.empty({pool.size(), Scratch::floats(out.dim)});
  forward_passes(
      args, ctx, [&](const Tensor& lse) { fill_lse(lse, 0, lse.dim(1)); },
      [&](const Attention& one, const BranchPass& pass) { run_pass(one, pass, scratch.data<float>(), pool); });
  const Heads carry = args.carry.defined() ? heads_of(args.carry) : Heads{};
  if (carry.data == out.data) return;
  for_rows_outside(args.queries, out.tokens, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t n = first; n < first + count; ++n)
      for (std::int64_t h = 0; h < out.heads; ++h)
        carry.data ? std::copy_n(carry.at(n, h), out.dim, out.at(n, h)) : std::fill_n(out.at(n, h), out.dim, 0.0f);
    if (!carry.data) fill_lse(args.lse, first, count);
  });
}

const bool added = attention_kernel.add(Backend::cpu, {"blocked", run_attention});

}  // namespace
}  // namespace ring::cpu
