// The backward of attention. One task is a run of key blocks of one sequence and KV head, and owns their dk and dv.
// When there are fewer sequences and heads than threads want, the keys of one are cut into several tasks; each but the
// first then sums its share of dq on the side, and the shares are added in one order. The cut depends on shapes and
// thread count only.

#include <span>

#include "kernels/attention/attention.h"
#include "kernels/attention/cpu/common.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

struct Task {
  std::int64_t start, length, kv_head;
  std::int64_t first_key, end_key;  // within the sequence; first_key on a block boundary
  std::int64_t share;               // where its part of dq lies, in floats; -1: in dq itself
  std::int64_t cost;                // tiles of scores
};

struct Problem {
  Heads q, k, v, out, dout, dq, dk, dv;
  const float* lse;
  float* delta;   // [Hq,N]: rowsum(dout * out)
  float* shares;  // parts of dq, each [heads of the group, length, D]
  float scale;
  bool causal;
  std::int64_t group;
};

// Queries before this one see none of the keys from `key` on.
std::int64_t first_query(bool causal, std::int64_t key) { return causal ? key / kQueryBlock * kQueryBlock : 0; }

// dq of one query head of a task: rows of the sequence.
Heads dq_of(const Problem& p, const Task& t, std::int64_t in_group) {
  if (t.share < 0)
    return {p.dq.at(t.start, t.kv_head * p.group + in_group), t.length, 1, p.dq.dim, p.dq.row, p.dq.head};
  return {p.shares + t.share + in_group * t.length * p.q.dim, t.length, 1, p.q.dim, p.q.dim, 0};
}

// scores -> P = exp(S - lse), dp -> dS = P (dP - delta), both 0 where the query does not see the key.
void gradient_row(float* scores, float* dp, float lse, float delta, std::int64_t seen, std::int64_t width) {
  const std::int64_t padded = whole_vectors(seen);
  std::fill(scores + seen, scores + padded, kMinusInf);
  std::fill(dp + seen, dp + padded, 0.0f);
  const float shift = lse == kMinusInf ? -kMinusInf : lse;  // a row without keys has no weights
#pragma GCC ivdep
  for (std::int64_t j = 0; j < padded; ++j) {
    scores[j] = exp_fast(scores[j] - shift);
    dp[j] = scores[j] * (dp[j] - delta);
  }
  if (padded >= width) return;
  std::fill(scores + padded, scores + width, 0.0f);
  std::fill(dp + padded, dp + width, 0.0f);
}

struct Tile {
  std::int64_t head, kv_head;
  std::int64_t query, key;   // within the sequence
  std::int64_t row, column;  // the same, of all tokens
  std::int64_t rows, width;
};

void run_tile(const Problem& p, const Tile& t, float* scores, float* dp) {
  const Gemm product{.transpose_b = true, .m = t.rows, .n = t.width, .k = p.q.dim, .ldc = kKeyBlock};
  Gemm s = product, d = product;
  s.a = p.q.at(t.row, t.head), s.lda = p.q.row, s.b = p.k.at(t.column, t.kv_head), s.ldb = p.k.row;
  s.c = scores, s.alpha = p.scale;
  d.a = p.dout.at(t.row, t.head), d.lda = p.dout.row, d.b = p.v.at(t.column, t.kv_head), d.ldb = p.v.row, d.c = dp;
  gemm(s);
  gemm(d);
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const std::int64_t at = t.head * p.q.tokens + t.row + r;
    gradient_row(scores + r * kKeyBlock, dp + r * kKeyBlock, p.lse[at], p.delta[at],
                 visible(p.causal, t.query + r, t.key, t.width), t.width);
  }
}

// All gradients that one tile of scores gives. first_queries: nothing is in dk and dv yet; first_keys: nothing in dq.
void add_tile(const Problem& p, const Tile& t, const Heads& dq, bool first_queries, bool first_keys, float* scratch) {
  float *scores = scratch, *ds = scratch + kTile;
  run_tile(p, t, scores, ds);
  const float beta = first_queries ? 0.0f : 1.0f;
  gemm({.transpose_a = true,
        .m = t.width,
        .n = p.q.dim,
        .k = t.rows,
        .a = scores,
        .lda = kKeyBlock,
        .b = p.dout.at(t.row, t.head),
        .ldb = p.dout.row,
        .c = p.dv.at(t.column, t.kv_head),
        .ldc = p.dv.row,
        .beta = beta});
  gemm({.transpose_a = true,
        .m = t.width,
        .n = p.q.dim,
        .k = t.rows,
        .a = ds,
        .lda = kKeyBlock,
        .b = p.q.at(t.row, t.head),
        .ldb = p.q.row,
        .c = p.dk.at(t.column, t.kv_head),
        .ldc = p.dk.row,
        .alpha = p.scale,
        .beta = beta});
  gemm({.m = t.rows,
        .n = p.q.dim,
        .k = t.width,
        .a = ds,
        .lda = kKeyBlock,
        .b = p.k.at(t.column, t.kv_head),
        .ldb = p.k.row,
        .c = dq.at(t.query, 0),
        .ldc = dq.row,
        .alpha = p.scale,
        .beta = first_keys ? 0.0f : 1.0f});
}

void run_task(const Problem& p, const Task& t, float* scratch) {
  for (std::int64_t key = t.first_key; key < t.end_key; key += kKeyBlock) {
    bool first_queries = true;
    for (std::int64_t g = 0; g < p.group; ++g) {
      const Heads dq = dq_of(p, t, g);
      for (std::int64_t query = first_query(p.causal, key); query < t.length; query += kQueryBlock) {
        const Tile tile{t.kv_head * p.group + g,
                        t.kv_head,
                        query,
                        key,
                        t.start + query,
                        t.start + key,
                        std::min(kQueryBlock, t.length - query),
                        std::min(kKeyBlock, t.end_key - key)};
        add_tile(p, tile, dq, first_queries, key == t.first_key, scratch);
        first_queries = false;
      }
    }
  }
}

// Adds the shares of dq of one sequence and KV head: `parts`, in order of their keys.
void add_shares(const Problem& p, std::span<const Task> parts) {
  for (const Task& t : parts)
    for (std::int64_t g = 0; t.share >= 0 && g < p.group; ++g) {
      const Heads share = dq_of(p, t, g);
      for (std::int64_t n = first_query(p.causal, t.first_key); n < t.length; ++n) {
        float* to = p.dq.at(t.start + n, t.kv_head * p.group + g);
        const float* from = share.at(n, 0);
        for (std::int64_t i = 0; i < p.q.dim; ++i) to[i] += from[i];
      }
    }
}

std::int64_t key_block_cost(bool causal, std::int64_t length, std::int64_t key) {
  return blocks(length - first_query(causal, key), kQueryBlock);
}
std::int64_t sequence_cost(bool causal, std::int64_t length) {
  std::int64_t cost = 0;
  for (std::int64_t key = 0; key < length; key += kKeyBlock) cost += key_block_cost(causal, length, key);
  return cost;
}

struct Plan {
  std::vector<Task> tasks;                // grouped by sequence and KV head, in order of keys
  std::vector<std::size_t> groups = {0};  // where each group starts, and the end of the last
  std::int64_t share_floats = 0;
};

// Cuts the keys of `whole` into about `wanted` tasks of about equal cost.
void cut_keys(Plan& plan, const Task& whole, bool causal, std::int64_t wanted, std::int64_t share_size) {
  Task t = whole;
  t.cost = 0;
  std::int64_t done = 0, made = 0;
  for (std::int64_t key = 0; key < whole.length; key += kKeyBlock) {
    t.cost += key_block_cost(causal, whole.length, key);
    t.end_key = std::min(key + kKeyBlock, whole.length);
    if (t.end_key < whole.length && (done + t.cost) * wanted < whole.cost * (made + 1)) continue;
    t.share = made == 0 ? -1 : plan.share_floats;
    if (made > 0) plan.share_floats += share_size;
    plan.tasks.push_back(t);
    done += t.cost;
    ++made;
    t.cost = 0;
    t.first_key = t.end_key;
  }
  plan.groups.push_back(plan.tasks.size());
}

Plan make_plan(const std::vector<std::int32_t>& offsets, const Problem& p, int threads) {
  std::int64_t total = 0;
  for (std::size_t b = 0; b + 1 < offsets.size(); ++b)
    total += p.k.heads * sequence_cost(p.causal, offsets[b + 1] - offsets[b]);
  const std::int64_t fair = std::max<std::int64_t>(1, threads == 1 ? total : total / (2 * threads));
  Plan plan;
  for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
    const std::int64_t start = offsets[b], length = offsets[b + 1] - start, cost = sequence_cost(p.causal, length);
    for (std::int64_t h = 0; h < p.k.heads && length > 0; ++h)
      cut_keys(plan, {.start = start, .length = length, .kv_head = h, .cost = cost}, p.causal, blocks(cost, fair),
               p.group * length * p.q.dim);
  }
  return plan;
}

Problem check(const AttentionBackward& args) {
  constexpr const char* op = "attention_backward";
  Problem p{.q = heads_of(args.q, op, "q"),
            .k = heads_of(args.k, op, "k"),
            .v = heads_of(args.v, op, "v"),
            .out = heads_of(args.out, op, "out"),
            .dout = heads_of(args.dout, op, "dout"),
            .dq = heads_of(args.dq, op, "dq"),
            .dk = heads_of(args.dk, op, "dk"),
            .dv = heads_of(args.dv, op, "dv"),
            .scale = args.scale,
            .causal = args.causal};
  check_geometry(p.q, p.k, op);
  check_same(p.k, p.v, op, "k and v");
  check_same(p.q, p.out, op, "q and out");
  check_same(p.q, p.dout, op, "q and dout");
  check_same(p.q, p.dq, op, "q and dq");
  check_same(p.k, p.dk, op, "k and dk");
  check_same(p.v, p.dv, op, "v and dv");
  check_offsets(args.offsets, p.q.tokens, op);
  RING_CHECK(args.lse.shape() == (Shape{p.q.heads, p.q.tokens}) && args.lse.contiguous(), op, ": lse is ",
             describe(args.lse), " for ", p.q.heads, " heads and ", p.q.tokens, " tokens");
  p.lse = args.lse.data<float>();
  p.group = p.q.heads / p.k.heads;
  return p;
}

void compute_delta(const Problem& p, ThreadPool& pool) {
  pool.parallel_for(p.q.tokens, 64, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < p.q.heads; ++h)
        p.delta[h * p.q.tokens + n] = dot(p.out.at(n, h), p.dout.at(n, h), p.q.dim);
  });
}

void run_attention_backward(const AttentionBackward& args, const Context& ctx) {
  Problem p = check(args);
  ThreadPool& pool = ctx.stream.pool();
  const Plan plan = make_plan(args.offsets, p, pool.size());
  const Tensor delta = ctx.empty({p.q.heads, p.q.tokens}), shares = ctx.empty({plan.share_floats});
  const Tensor scratch = ctx.empty({pool.size(), 2 * kTile});
  p.delta = delta.data<float>();
  p.shares = shares.data<float>();
  for_rows_outside(args.offsets, p.q.tokens, [&](std::int64_t first, std::int64_t count) {
    for (const Heads& t : {p.dq, p.dk, p.dv}) zero_rows(t, first, count);
  });
  compute_delta(p, pool);
  float* tiles = scratch.data<float>();
  share_out(plan.tasks, pool, [&](const Task& t, int thread) { run_task(p, t, tiles + thread * 2 * kTile); });
  if (plan.share_floats == 0) return;
  pool.parallel_for(
      static_cast<std::int64_t>(plan.groups.size()) - 1, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (auto g = static_cast<std::size_t>(begin); g < static_cast<std::size_t>(end); ++g)
          add_shares(p, std::span(plan.tasks).subspan(plan.groups[g], plan.groups[g + 1] - plan.groups[g]));
      });
}

const bool added = attention_backward_kernel.add(Backend::cpu, {"blocked", run_attention_backward});

}  // namespace
}  // namespace ring::cpu
