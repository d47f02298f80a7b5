// Attention backward. Each task computes dk and dv of a run of key blocks of one segment pair and KV head. If there are
// too few segment pairs and heads for the threads, the keys of one are divided among several tasks. The first task
// accumulates into dq, and every other task into a partial dq of its own (a share); the shares are then added in a
// fixed order. The division depends only on shapes and thread count.

#include <span>

#include "kernels/attention/cpu/dropout.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/attention/cpu/tile_product.h"
#include "kernels/attention/cpu/tiles.h"
#include "kernels/attention/head_segment.h"
#include "kernels/cpu/transpose.h"

namespace ring::cpu {
namespace {

struct Problem {
  Heads q, k, v, dout, dq, dk, dv;
  Heads carry_dq, carry_dk, carry_dv;  // data is null if there is no carry
  bool first;                          // true for the first pass, which initializes the gradients
  float *lse, *delta;                  // [Hq,N]; delta = rowsum(dout * out)
  float* shares;                       // partial dq, each [heads of the group, queries of the task, D]
  float scale, soft_cap;
  const Pattern& pattern;
  const BranchPass& pass;
  Mask mask;
  SelectedBlocks selected;

  std::int64_t group() const { return q.heads / k.heads; }
};

// Work of one thread: dk and dv of keys [key, key_end), which no other task writes, and these keys' part of dq.
// Positions count samples of the head segment.
struct Task {
  const SegmentPair* piece;
  std::int32_t kv_head, key, key_end;
  std::int32_t query, query_end;  // queries that may see some of the keys
  std::int32_t rows;              // number of queries in the score tiles of the task's first key block
  std::int64_t share;  // offset of the task's partial dq in `shares`, in floats; -1 if the task adds to dq itself
  std::int64_t cost;   // number of scores

  std::int64_t queries() const { return std::max(0, query_end - query); }
  View view(const Problem& p) const { return {p.pass, p.pattern, p.selected, *piece, kv_head}; }
};

struct Tile {
  std::int32_t row, row_end, key, key_end;
};

// Calls fn(tile) for each tile of scores of keys [key, key_end). These keys must be in one block.
template <class Fn>
void for_tiles(const View& v, std::int32_t key, std::int32_t key_end, const Fn& fn) {
  for_runs<Stationary::kv>(v, key, key_end, [&](std::int32_t row, std::int32_t end) {
    for (std::int32_t next; row < end; row = next) {
      next = row + std::min<std::int32_t>(kQueryBlock, end - row);
      const TileBounds r = v.segment.bounds<Stationary::q>(row, next);
      std::int32_t first = std::max(key, r.first), last = std::min(key_end, r.end);
      if (first >= r.gap && first < r.gap_end) first = r.gap_end;
      if (last > r.gap && last <= r.gap_end) last = r.gap;
      if (first < last) fn(Tile{row, next, first, last});
    }
  });
}

// Calls fn(key, key_end) for each block of keys in [first, end).
template <class Fn>
void for_key_blocks(const View& v, std::int32_t first, std::int32_t end, const Fn& fn) {
  for_blocks(first, end, v.blocks ? v.blocks->block() : kKeyBlock, fn);
}

// Returns the rows to which a task adds dq of one query head: rows of dq itself or of the task's share.
Rows dq_of(const Problem& p, const Task& t, const HeadSegment& s, std::int64_t in_group) {
  if (t.share < 0) return rows_of(p.dq, t.kv_head * p.group() + in_group, s.q_row, s.rate);
  const std::int64_t dim = p.q.dim;
  return {p.shares + t.share + in_group * t.queries() * dim, -t.query * dim, dim};
}

// One query head of a task: the rows of its head segment in every tensor.
struct Operands {
  std::int64_t head;
  Rows q, k, v, dout, dq, dk, dv, lse, delta;

  Operands(const Problem& p, const Task& t, const HeadSegment& s, std::int64_t in_group) {
    head = t.kv_head * p.group() + in_group;
    q = rows_of(p.q, head, s.q_row, s.rate), dout = rows_of(p.dout, head, s.q_row, s.rate);
    k = rows_of(p.k, t.kv_head, s.k_row, s.rate), v = rows_of(p.v, t.kv_head, s.k_row, s.rate);
    dk = rows_of(p.dk, t.kv_head, s.k_row, s.rate), dv = rows_of(p.dv, t.kv_head, s.k_row, s.rate);
    dq = dq_of(p, t, s, in_group);
    lse = {p.lse + head * p.q.tokens, s.q_row, s.rate};
    delta = {p.delta + head * p.q.tokens, s.q_row, s.rate};
  }
};

// Scratch memory of one thread for a strip. P and dS have a row per key of a tile and a column per query; queries and
// dout are stored transposed, [dim, kStrip].
struct Scratch {
  float *scores, *ds, *queries, *dout;
  static std::int64_t floats(std::int64_t dim) { return 2 * kStrip * (kKeyBlock + dim); }
  Scratch(float* p, std::int64_t dim)
      : scores(p), ds(scores + kKeyBlock * kStrip), queries(ds + kKeyBlock * kStrip), dout(queries + dim * kStrip) {}
};

// Replaces the capped scores S by P = exp(S - lse), and dP in `ds` by the gradient of the uncapped scores:
//   dS = P (dP - delta) (1 - (S / cap)^2)
// P and dS are 0 if a query does not see the key. inverse_cap: 1 / soft_cap, or 0 if there is no cap.
void gradient(const Operands& o, const Strip& t, float* scores, float* ds, float inverse_cap) {
  float shift[kStrip] = {}, delta[kStrip] = {};
  for (std::int32_t j = 0; j < t.end - t.row; ++j) {
    const float lse = *o.lse.at(t.row + j);
    shift[j] = lse == kMinusInf ? -kMinusInf : lse;  // makes P 0 for a query without keys
    delta[j] = *o.delta.at(t.row + j);
  }
  hide_unseen(t, scores);
  for (std::int64_t k = t.seen.first; k < t.seen.first + t.seen.count; ++k) {
    float *s = scores + k * kStrip, *d = ds + k * kStrip;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < kStrip; ++j) {
      const float share = s[j] * inverse_cap;
      s[j] = exp_fast(s[j] - shift[j]);
      d[j] = s[j] == 0 ? 0 : s[j] * (d[j] - delta[j]) * (1 - share * share);
    }
  }
}

float inverse_cap(const Problem& p) { return p.soft_cap > 0 ? 1 / p.soft_cap : 0; }

// Like gradient(), with dropout: computes dS from the masked dP, and masks P afterwards, for dv.
void dropped_gradient(const Problem& p, const Operands& o, const Strip& t, float* scores, float* ds) {
  std::uint32_t keys[kStrip] = {};
  for (std::int32_t j = 0; j < t.end - t.row; ++j)
    keys[j] = p.mask.row_key(t.segment.q_row + std::int64_t{t.row + j} * t.segment.rate, o.head);
  drop(p.mask, t, keys, ds);
  gradient(o, t, scores, ds, inverse_cap(p));
  drop(p.mask, t, keys, scores);
}

// Computes P and dS of a strip.
void run_strip(const Problem& p, const Operands& o, const Strip& t, const Scratch& scratch) {
  const std::int64_t at = t.seen.first * kStrip, dim = p.q.dim;
  const auto product = [&](const Rows& keys, const Rows& rows, float* turned, float* c, float alpha) {
    transpose(rows.at(t.row), rows.stride, t.end - t.row, dim, turned, kStrip);
    tile_product({.m = t.seen.count,
                  .n = kStrip,
                  .k = dim,
                  .a = keys.at(t.key + t.seen.first),
                  .a_row = keys.stride,
                  .b = turned,
                  .ldb = kStrip,
                  .c = c + at,
                  .ldc = kStrip,
                  .alpha = alpha});
  };
  product(o.k, o.q, scratch.queries, scratch.scores, p.scale);
  cap_scores(scratch.scores + at, t.seen.count * kStrip, p.soft_cap);
  product(o.v, o.dout, scratch.dout, scratch.ds, 1);
  if (p.mask.drops())
    dropped_gradient(p, o, t, scratch.scores, scratch.ds);
  else
    gradient(o, t, scratch.scores, scratch.ds, inverse_cap(p));
}

// Adds a strip's gradients to dq, dk and dv. With beta_dq = 0, overwrites dq of the strip's queries instead.
void add_strip(const Problem& p, const Operands& o, const Strip& t, float beta_dq, const Scratch& scratch) {
  const std::int64_t rows = t.end - t.row, first = t.key + t.seen.first, at = t.seen.first * kStrip, dim = p.q.dim;
  const auto add_to_keys = [&](const Rows& gradient, const float* tile, const Rows& of, float alpha) {
    tile_product({.m = t.seen.count,
                  .n = dim,
                  .k = rows,
                  .a = tile + at,
                  .a_row = kStrip,
                  .b = of.at(t.row),
                  .ldb = of.stride,
                  .c = gradient.at(first),
                  .ldc = gradient.stride,
                  .alpha = alpha,
                  .beta = 1});
  };
  add_to_keys(o.dv, scratch.scores, o.dout, 1);
  add_to_keys(o.dk, scratch.ds, o.q, p.scale);
  tile_product({.m = rows,
                .n = dim,
                .k = t.seen.count,
                .a = scratch.ds + at,
                .a_row = 1,
                .a_column = kStrip,
                .b = o.k.at(first),
                .ldb = o.k.stride,
                .c = o.dq.at(t.row),
                .ldc = o.dq.stride,
                .alpha = p.scale,
                .beta = beta_dq});
}

// Initializes rows [first, end) of a gradient with the carry, or with 0 if there is none.
void start(const Rows& to, const Rows& carry, std::int64_t first, std::int64_t end, std::int64_t dim) {
  if (carry.data && carry.data == to.data) return;
  for (std::int64_t j = first; j < end; ++j)
    if (carry.data)
      std::copy_n(carry.at(j), dim, to.at(j));
    else
      std::fill_n(to.at(j), dim, 0.0f);
}

void start_queries(const Problem& p, const Task& t, const HeadSegment& s) {
  for (std::int64_t h = t.kv_head * p.group(); h < (t.kv_head + 1) * p.group(); ++h)
    start(rows_of(p.dq, h, s.q_row, s.rate), rows_of(p.carry_dq, h, s.q_row, s.rate), s.q_first, s.q_end, p.q.dim);
}
void start_keys(const Problem& p, const Task& t, const HeadSegment& s, std::int32_t key, std::int32_t end) {
  const auto rows = [&](const Heads& x) { return rows_of(x, t.kv_head, s.k_row, s.rate); };
  start(rows(p.dk), rows(p.carry_dk), key, end, p.q.dim);
  start(rows(p.dv), rows(p.carry_dv), key, end, p.q.dim);
}

// Returns true if the first key block writes every row of dq, so that dq does not need to be initialized.
bool begins_queries(const Problem& p, const Task& t, const HeadSegment& s) {
  if (t.share >= 0) return t.rows == t.queries();
  return p.first && !p.carry_dq.data && t.rows == s.q_end - s.q_first;
}

// Adds the gradients of keys [key, end), one block of a task.
void run_block(const Problem& p, const Task& t, const View& view, std::int32_t key, std::int32_t end, float beta_dq,
               const Scratch& scratch) {
  if (p.first) start_keys(p, t, view.segment, key, end);
  for (std::int64_t g = 0; g < p.group(); ++g) {
    const Operands o(p, t, view.segment, g);
    for_tiles(view, key, end, [&](const Tile& tile) {
      for_strips(tile.row, tile.row_end, [&](std::int32_t row, std::int32_t row_end) {
        const HeadSegment& s = view.segment;
        const Strip strip{s, row, row_end, tile.key, seen_by(s, row, row_end, tile.key, tile.key_end - tile.key)};
        run_strip(p, o, strip, scratch);
        add_strip(p, o, strip, beta_dq, scratch);
      });
    });
  }
}

void run_task(const Problem& p, const Task& t, const Scratch& scratch) {
  const View view = t.view(p);
  const bool begin = begins_queries(p, t, view.segment);
  if (t.share >= 0 && !begin) std::fill_n(p.shares + t.share, p.group() * t.queries() * p.q.dim, 0.0f);
  if (t.share < 0 && !begin && p.first) start_queries(p, t, view.segment);
  for_key_blocks(view, t.key, t.key_end, [&](std::int32_t key, std::int32_t end) {
    run_block(p, t, view, key, end, begin && key == t.key ? 0.0f : 1.0f, scratch);
  });
}

// Adds the shares of one segment pair and KV head to dq. parts: the tasks of both, in the order of their keys.
void add_shares(const Problem& p, std::span<const Task> parts, ThreadPool& pool) {
  const HeadSegment s = parts.front().view(p).segment;
  pool.parallel_for(s.q_end - s.q_first, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (const Task& t : parts.subspan(1))
      for (std::int64_t g = 0; g < p.group(); ++g) {
        const Rows from = dq_of(p, t, s, g), to = rows_of(p.dq, t.kv_head * p.group() + g, s.q_row, s.rate);
        const std::int64_t first = std::max<std::int64_t>(s.q_first + begin, t.query);
        const std::int64_t last = std::min<std::int64_t>(s.q_first + end, t.query_end);
        for (std::int64_t n = first; n < last; ++n)
          for (std::int64_t i = 0; i < p.q.dim; ++i) to.at(n)[i] += from.at(n)[i];
      }
  });
}

struct Plan {
  std::vector<Task> tasks;                // grouped by segment pair and KV head, in the order of keys
  std::vector<std::size_t> groups = {0};  // index of each group's first task, then the number of tasks
  std::int64_t share_floats = 0;          // floats of all shares
};

// Returns one task per key block.
std::vector<Task> block_tasks(const Problem& p, const SegmentPair& piece, std::int32_t kv_head) {
  std::vector<Task> tasks;
  const View view(p.pass, p.pattern, p.selected, piece, kv_head);
  const HeadSegment& s = view.segment;
  const auto nothing = [&](std::int32_t key, std::int32_t end) {
    return Task{&piece, kv_head, key, end, s.q_end, s.q_first, 0, -1, 0};
  };
  for_key_blocks(view, s.k_first, s.k_end, [&](std::int32_t key, std::int32_t end) {
    Task t = nothing(key, end);
    for_tiles(view, key, end, [&](const Tile& tile) {
      t.query = std::min(t.query, tile.row);
      t.query_end = std::max(t.query_end, tile.row_end);
      t.rows += tile.row_end - tile.row;
      t.cost += std::int64_t{tile.row_end - tile.row} * (tile.key_end - tile.key) * p.group();
    });
    tasks.push_back(t);
  });
  if (tasks.empty()) tasks.push_back(nothing(s.k_first, s.k_first));  // without keys, dq must still be initialized
  return tasks;
}

std::int64_t cost_of(const std::vector<Task>& tasks) {
  std::int64_t sum = 0;
  for (const Task& t : tasks) sum += t.cost;
  return sum;
}

// Joins the key blocks of one group to about `wanted` tasks of about equal cost, and appends the tasks to the plan.
void join(Plan& plan, const std::vector<Task>& blocks, std::int64_t wanted, std::int64_t floats_per_query) {
  const std::int64_t whole = cost_of(blocks);
  std::int64_t done = 0, made = 0;
  for (std::size_t i = 0; i < blocks.size(); ++made) {
    Task t = blocks[i];
    for (++i; i < blocks.size() && (wanted <= 1 || (done + t.cost) * wanted < whole * (made + 1)); ++i) {
      t.key_end = blocks[i].key_end;
      t.query = std::min(t.query, blocks[i].query);
      t.query_end = std::max(t.query_end, blocks[i].query_end);
      t.cost += blocks[i].cost;
    }
    done += t.cost;
    if (made > 0) {
      t.share = plan.share_floats;
      plan.share_floats += floats_per_query * t.queries();
    }
    plan.tasks.push_back(t);
  }
  plan.groups.push_back(plan.tasks.size());
}

Plan make_plan(const Problem& p, const std::vector<SegmentPair>& pieces, int threads) {
  std::vector<std::vector<Task>> groups;
  std::int64_t total = 0;
  for (const SegmentPair& piece : pieces)
    for (std::int32_t h = 0; h < p.k.heads; ++h) {
      groups.push_back(block_tasks(p, piece, h));
      total += cost_of(groups.back());
    }
  const std::int64_t fair = std::max<std::int64_t>(1, threads == 1 ? total : total / (2 * threads));
  Plan plan;
  for (const std::vector<Task>& blocks : groups)
    join(plan, blocks, (cost_of(blocks) + fair - 1) / fair, p.group() * p.q.dim);
  return plan;
}

void run_pass(Problem& p, const std::vector<SegmentPair>& pieces, float* scratch, const ExecContext& ctx) {
  ThreadPool& pool = ctx.stream.pool();
  const Plan plan = make_plan(p, pieces, pool.size());
  const Tensor shares = ctx.empty({plan.share_floats});
  p.shares = shares.data<float>();
  share_out(plan.tasks, pool, [&](const Task& t, int thread) {
    run_task(p, t, Scratch(scratch + thread * Scratch::floats(p.q.dim), p.q.dim));
  });
  for (std::size_t g = 0; g + 1 < plan.groups.size(); ++g) {
    const std::size_t parts = plan.groups[g + 1] - plan.groups[g];
    if (parts > 1) add_shares(p, std::span(plan.tasks).subspan(plan.groups[g], parts), pool);
  }
}

// Initializes the gradients of rows that are in no span.
void start_outside(const Heads& to, const Heads& carry, const std::vector<Span>& spans) {
  for_rows_outside(spans, to.tokens, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t h = 0; h < to.heads; ++h)
      start(rows_of(to, h, first, 1), rows_of(carry, h, first, 1), 0, count, to.dim);
  });
}

void compute_delta(const Heads& out, const Heads& dout, float* delta, ThreadPool& pool) {
  pool.parallel_for(out.tokens, 64, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < out.heads; ++h)
        delta[h * out.tokens + n] = dot(out.at(n, h), dout.at(n, h), out.dim);
  });
}

Problem problem_of(const AttentionBackward& args, const BranchPass& pass, const Tensor& delta) {
  const auto carry = [](const Tensor& t) { return t.defined() ? heads_of(t) : Heads{}; };
  return {.q = heads_of(args.q),
          .k = heads_of(args.k),
          .v = heads_of(args.v),
          .dout = heads_of(args.dout),
          .dq = heads_of(args.dq),
          .dk = heads_of(args.dk),
          .dv = heads_of(args.dv),
          .carry_dq = carry(args.carry_dq),
          .carry_dk = carry(args.carry_dk),
          .carry_dv = carry(args.carry_dv),
          .first = false,
          .lse = args.lse.data<float>(),
          .delta = delta.data<float>(),
          .shares = nullptr,
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .pattern = args.pattern,
          .pass = pass,
          .mask = Mask(args.dropout),
          .selected = SelectedBlocks(args.selection)};
}

void run_attention_backward(const AttentionBackward& args, const ExecContext& ctx) {
  check(args);
  const Tensor delta = ctx.empty(args.lse.shape()),
               scratch = ctx.empty({ctx.stream.pool().size(), Scratch::floats(args.q.dim(2))});
  compute_delta(heads_of(args.out), heads_of(args.dout), delta.data<float>(), ctx.stream.pool());
  const std::vector<BranchPass> passes = passes_of(args.pattern);
  for (std::size_t i = passes.size(); i-- > 0;) {  // starts with the last pass, since this pass covers every row
    Problem p = problem_of(args, passes[i], delta);
    p.first = i + 1 == passes.size();
    if (p.first) {
      start_outside(p.dq, p.carry_dq, args.queries);
      start_outside(p.dk, p.carry_dk, args.keys);
      start_outside(p.dv, p.carry_dv, args.keys);
    }
    run_pass(p, segment_pairs_of(passes[i], args.pattern, args.queries, args.keys, args.selection.rows),
             scratch.data<float>(), ctx);
  }
}

const bool added = attention_backward_kernel.add(Backend::cpu, {"blocked", run_attention_backward});

}  // namespace
}  // namespace ring::cpu
