// Attention forward with online softmax (Milakov and Gimelshein 2018): a running maximum and sum per query, so that no
// row of scores is ever stored whole. Each task computes one block of queries of one head.

#include "kernels/attention/cpu/dropout.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/attention/cpu/tile_product.h"
#include "kernels/attention/cpu/tiles.h"
#include "kernels/attention/head_segment.h"
#include "kernels/attention/passes.h"
#include "kernels/cpu/transpose.h"

namespace ring::cpu {
namespace {

struct Problem {
  Heads q, k, v, out, carry;  // carry.data is null if there is no carry
  float* lse;
  float scale, soft_cap;
  const Pattern& pattern;
  const BranchPass& pass;
  Mask mask;
  SelectedBlocks selected;

  std::int64_t group() const { return q.heads / k.heads; }
};

struct Task {
  const SegmentPair* piece;
  std::int64_t head;
  std::int32_t row, row_end;  // queries [row, row_end) of the head segment
  std::int64_t cost;          // keys that the block's queries may see
};

// A block of queries and its online softmax state.
struct Block {
  std::int64_t rows, dim;
  Rows out, lse;       // row 0 is the first query of the block
  bool merged = true;  // true if results are added to `out`; false if `out` is uninitialized
  float max[kQueryBlock], sum[kQueryBlock];
  std::uint32_t key[kQueryBlock] = {};  // dropout keys of the query rows
};

void rescale(float* row, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; ++i) row[i] *= factor;
}

// Initializes the state. A carried row counts as one key: its score is the carried log-sum-exp, its value the row.
void start(Block& b, const Rows& carry) {
  std::fill_n(b.max, kQueryBlock, kMinusInf);
  std::fill_n(b.sum, kQueryBlock, 0.0f);
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

// Scratch memory of one thread. Scores have a row per key of a tile and a column per query of a strip, so that one
// vector instruction handles all queries of the strip. Queries are stored transposed, [dim, kStrip] per strip.
struct Scratch {
  float *scores, *queries, *keys, *values;
  static std::int64_t floats(std::int64_t dim) { return kKeyBlock * kStrip + (kQueryBlock + 2 * kKeyBlock) * dim; }
  Scratch(float* p, std::int64_t dim)
      : scores(p),
        queries(scores + kKeyBlock * kStrip),
        keys(queries + kQueryBlock * dim),
        values(keys + kKeyBlock * dim) {}
};

// Replaces the scores of a strip by unnormalized probabilities, and rescales the block's sums and outputs to the new
// maxima. The strip starts at the block's query `at`.
void softmax(Block& b, std::int64_t at, const Extent& seen, float* scores) {
  float* const first = scores + seen.first * kStrip;
  const float* const end = first + seen.count * kStrip;
  float max[kStrip], shift[kStrip], sum[kStrip];
  for (std::int32_t part = 0; part < kStrip; part += kPart) {
    Lanes top, x;
    load(top, b.max + at + part);
    for (const float* s = first + part; s < end; s += kStrip) {
      load(x, s);
      top = top < x ? x : top;
    }
    std::memcpy(max + part, &top, sizeof top);
  }
  for (std::int64_t j = 0; j < kStrip; ++j) shift[j] = max[j] == kMinusInf ? 0 : max[j];
  exp_strip(first, end, shift, sum);
  for (std::int64_t j = 0; j < kStrip; ++j) {
    const float old = b.max[at + j], factor = old == kMinusInf ? 0 : exp_fast(old - shift[j]);
    if (factor != 1 && old != kMinusInf && at + j < b.rows) rescale(b.out.at(at + j), b.dim, factor);
    b.sum[at + j] = b.sum[at + j] * factor + sum[j];
    b.max[at + j] = max[j];
  }
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

// Computes the scores of a strip that starts at query `at` of the block, and adds P V to the block's output.
void add_strip(const Problem& p, const Strip& t, Block& b, std::int64_t at, const Scratch& scratch) {
  const Extent& seen = t.seen;
  float* scores = scratch.scores + seen.first * kStrip;
  tile_product({.m = seen.count,
                .n = kStrip,
                .k = b.dim,
                .a = scratch.keys + seen.first * b.dim,
                .a_row = b.dim,
                .b = scratch.queries + at * b.dim,
                .ldb = kStrip,
                .c = scores,
                .ldc = kStrip,
                .alpha = p.scale});
  cap_scores(scores, seen.count * kStrip, p.soft_cap);
  hide_unseen(t, scratch.scores);
  softmax(b, at, seen, scratch.scores);
  if (p.mask.drops()) drop(p.mask, t, b.key + at, scratch.scores);
  tile_product({.m = t.end - t.row,
                .n = b.dim,
                .k = seen.count,
                .a = scores,
                .a_row = 1,
                .a_column = kStrip,
                .b = scratch.values + seen.first * b.dim,
                .ldb = b.dim,
                .c = b.out.at(at),
                .ldc = b.out.stride,
                .beta = b.merged ? 1.0f : 0.0f});
}

// Processes the keys [key, key + width) of the head segment for all strips of the block.
void add_tile(const Problem& p, const Task& t, const HeadSegment& s, Block& b, std::int32_t key, std::int32_t width,
              const Scratch& scratch) {
  const std::int64_t kv_head = t.head / p.group();
  rows_of(p.k, kv_head, s.k_row, s.rate).copy(key, width, b.dim, scratch.keys);
  rows_of(p.v, kv_head, s.k_row, s.rate).copy(key, width, b.dim, scratch.values);
  for_strips(t.row, t.row_end, [&](std::int32_t row, std::int32_t end) {
    add_strip(p, {s, row, end, key, seen_by(s, row, end, key, width)}, b, row - t.row, scratch);
  });
  b.merged = true;
}

void run_task(const Problem& p, const Task& t, const Scratch& scratch) {
  const View view(p.pass, p.pattern, p.selected, *t.piece, static_cast<std::int32_t>(t.head / p.group()));
  const HeadSegment& s = view.segment;
  const std::int64_t first = s.q_row + std::int64_t{t.row} * s.rate;
  Block block{.rows = t.row_end - t.row,
              .dim = p.q.dim,
              .out = rows_of(p.out, t.head, first, s.rate),
              .lse = {p.lse + t.head * p.q.tokens, first, s.rate}};
  start(block, rows_of(p.carry, t.head, first, s.rate));
  for (std::int64_t r = 0; p.mask.drops() && r < block.rows; ++r)
    block.key[r] = p.mask.row_key(first + r * s.rate, t.head);
  const Rows q = rows_of(p.q, t.head, s.q_row, s.rate);
  for_strips(t.row, t.row_end, [&](std::int32_t row, std::int32_t end) {
    transpose(q.at(row), q.stride, end - row, block.dim, scratch.queries + (row - t.row) * block.dim, kStrip);
  });
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
      const View view(p.pass, p.pattern, p.selected, piece, static_cast<std::int32_t>(h / p.group()));
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
                  .soft_cap = args.soft_cap,
                  .pattern = args.pattern,
                  .pass = pass,
                  .mask = Mask(args.dropout),
                  .selected = SelectedBlocks(args.selection)};
  const std::vector<SegmentPair> pieces =
      segment_pairs_of(pass, args.pattern, args.queries, args.keys, args.selection.rows);
  share_out(make_tasks(p, pieces), pool, [&](const Task& t, int thread) {
    run_task(p, t, Scratch(scratch + thread * Scratch::floats(p.q.dim), p.q.dim));
  });
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
