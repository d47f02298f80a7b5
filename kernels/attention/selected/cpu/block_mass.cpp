// Attention mass per block. Each task computes one query block and KV head.

#include "kernels/attention/selected/block_mass.h"

#include "kernels/attention/cpu/tile_product.h"
#include "kernels/attention/cpu/tiles.h"
#include "kernels/cpu/transpose.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kMaxBlock = 128;  // maximum rows of a block

struct Problem {
  Heads q, k;
  const float* lse;
  float* mass;
  float scale;
  const Pattern& pattern;
  const BranchPass& pass;
  SelectedBlocks selected;
  bool adds, whole_queries;  // whole_queries: true if all queries of a block are in the call

  std::int64_t group() const { return q.heads / k.heads; }
};

struct Task {
  const SegmentPair* piece;
  std::int32_t kv_head, row, row_end;  // queries [row, row_end) of the head segment
  std::int64_t cost;                   // number of key blocks
};

// Scratch memory of one thread: scores as in the forward, queries of one head, keys of one block, one row of masses.
struct Scratch {
  float *scores, *queries, *keys, *mass;
  static std::int64_t floats(std::int64_t dim, std::int64_t room) { return kMaxBlock * (kStrip + 2 * dim) + room; }
  Scratch(float* p, std::int64_t dim)
      : scores(p),
        queries(scores + kMaxBlock * kStrip),
        keys(queries + kMaxBlock * dim),
        mass(keys + kMaxBlock * dim) {}
};

// Returns the sum of exp(score - lse) over the keys and queries of a strip. Overwrites the scores.
float weights(const Strip& t, const float* lse, float* scores) {
  float shift[kStrip] = {}, sums[kStrip];
  for (std::int32_t j = 0; j < t.end - t.row; ++j) shift[j] = lse[j];
  float* const first = scores + t.seen.first * kStrip;
  exp_strip(first, first + t.seen.count * kStrip, shift, sums);
  float sum = 0;
  for (std::int32_t j = 0; j < t.end - t.row; ++j) sum += sums[j];
  return sum;
}

// Returns the sum of the probabilities that the task's queries of a head give to keys [key, key + width) of a block.
float mass_of(const Problem& p, const Task& t, const HeadSegment& s, std::int64_t head, std::int32_t key,
              std::int32_t width, const Scratch& scratch) {
  rows_of(p.k, t.kv_head, s.k_row, 1).copy(key, width, p.k.dim, scratch.keys);
  float mass = 0;
  for_strips(t.row, t.row_end, [&](std::int32_t row, std::int32_t end) {
    const Strip strip{s, row, end, key, seen_by(s, row, end, key, width)};
    tile_product({.m = strip.seen.count,
                  .n = kStrip,
                  .k = p.q.dim,
                  .a = scratch.keys + strip.seen.first * p.q.dim,
                  .a_row = p.q.dim,
                  .b = scratch.queries + (row - t.row) * p.q.dim,
                  .ldb = kStrip,
                  .c = scratch.scores + strip.seen.first * kStrip,
                  .ldc = kStrip,
                  .alpha = p.scale});
    hide_unseen(strip, scratch.scores);
    mass += weights(strip, p.lse + (head * p.q.tokens + s.q_row + row), scratch.scores);
  });
  return mass;
}

void run_task(const Problem& p, const Task& t, const Scratch& scratch) {
  const View view(p.pass, p.pattern, p.selected, *t.piece, t.kv_head);
  const HeadSegment& s = view.segment;
  const std::int32_t size = view.blocks->block();
  const std::int32_t list = t.piece->block_row + t.row / size;
  float *const mass = scratch.mass, *const out = p.mass + p.selected.offset(list, t.kv_head);
  std::fill_n(mass, p.selected.room, 0.0f);
  for (std::int64_t head = t.kv_head * p.group(); head < (t.kv_head + 1) * p.group(); ++head) {
    const Rows q = rows_of(p.q, head, s.q_row, 1);
    for_strips(t.row, t.row_end, [&](std::int32_t row, std::int32_t end) {
      transpose(q.at(row), q.stride, end - row, p.q.dim, scratch.queries + (row - t.row) * p.q.dim, kStrip);
    });
    for_runs<Stationary::q>(view, t.row, t.row_end, [&](std::int32_t first, std::int32_t end) {
      for_blocks(first, end, size, [&](std::int32_t key, std::int32_t key_end) {
        mass[p.selected.find(list, t.kv_head, key / size)] += mass_of(p, t, s, head, key, key_end - key, scratch);
      });
    });
  }
  // Counts the rows of the whole block by keys if some queries of the block may belong to other processes.
  const std::int32_t start = t.row / size * size;
  const std::int32_t rows =
      p.whole_queries ? t.row_end - t.row : std::min(s.k_end, start + size) - std::max(s.k_first, start);
  const float share = 1 / static_cast<float>(rows * p.group());
  for (std::int64_t n = 0; n < p.selected.room; ++n) out[n] = (p.adds ? out[n] : 0) + mass[n] * share;
}

std::vector<Task> make_tasks(const Problem& p, const std::vector<SegmentPair>& pieces) {
  std::vector<Task> tasks;
  const std::int32_t size = p.pattern.blocks->block();
  for (const SegmentPair& piece : pieces)
    for (std::int32_t head = 0; head < p.k.heads; ++head)
      for_blocks(piece.q_first, piece.q_end, size, [&](std::int32_t row, std::int32_t end) {
        const std::int64_t kept = p.selected.first_from(piece.block_row + row / size, head, row / size + 1);
        tasks.push_back({&piece, head, row, end, kept});
      });
  return tasks;
}

void run_block_mass(const BlockMass& a, const ExecContext& ctx) {
  check(a);
  const BranchPass pass = passes_of(a.pattern).front();
  const Problem p{.q = heads_of(a.q),
                  .k = heads_of(a.k),
                  .lse = a.lse.data<float>(),
                  .mass = a.mass.data<float>(),
                  .scale = a.scale,
                  .pattern = a.pattern,
                  .pass = pass,
                  .selected = SelectedBlocks(a.selection),
                  .adds = a.of_parts(),
                  .whole_queries = a.parts_of_keys};
  const std::vector<SegmentPair> pieces = segment_pairs_of(pass, a.pattern, a.query_spans(), a.spans, a.selection.rows);
  ThreadPool& pool = ctx.stream.pool();
  const std::int64_t floats = Scratch::floats(p.q.dim, p.selected.room);
  const Tensor scratch = ctx.empty({pool.size(), floats});
  share_out(make_tasks(p, pieces), pool, [&](const Task& t, int thread) {
    run_task(p, t, Scratch(scratch.data<float>() + thread * floats, p.q.dim));
  });
}

const bool added = block_mass_kernel.add(Backend::cpu, {"blocks", run_block_mass});

}  // namespace
}  // namespace ring::cpu
