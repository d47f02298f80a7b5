#include "parallel/context/pools/shard_pools.h"

#include <algorithm>
#include <memory>

#include "kernels/elementwise.h"
#include "parallel/context/plan.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

// The pools of one size; this rank makes some of them.
class ShardedPools {
 public:
  ShardedPools(const PoolSource& source, std::size_t i, const PoolPlan& plan, ContextParallel& exchange,
               const ExecContext& ctx)
      : plan_(plan),
        exchange_(exchange),
        ctx_(ctx),
        sums_(source, i, plan.pools.tokens(plan.pools.rank), ctx),
        whole_{source.k, source.v, source.scored, plan.whole} {
    parts_ = bring_parts();
    sums_.compute_pools(whole_);
    sums_.compute_pools(parts_);
  }

  // Returns the pools of all ranks.
  PoolKeys keys() const {
    const std::int64_t heads = sums_.keys.dim(1);
    const Tensor own = ctx_.empty({sums_.keys.dim(0), 2 * heads, sums_.keys.dim(2)}, sums_.keys.dtype());
    move_rows(own.narrow(1, 0, heads), sums_.keys, {.count = own.dim(0)}, ctx_);
    move_rows(own.narrow(1, heads, heads), sums_.values, {.count = own.dim(0)}, ctx_);
    const Tensor all = exchange_.all_rows(own, plan_.pools, ctx_);
    return {plan_.size, all.narrow(1, 0, heads), all.narrow(1, heads, heads), {}, {}};
  }

  void backward(const Tensor& gradients, const Tensor& dk, const Tensor& dv) {
    exchange_.sum(gradients, ctx_);
    const Tensor own = ctx_.empty({2, sums_.keys.dim(0), sums_.keys.dim(1), sums_.keys.dim(2)});
    for (const LocalRows& h : plan_.pools.rows_by_rank[static_cast<std::size_t>(plan_.pools.rank)])
      for (int i = 0; i < 2; ++i)
        move_rows(part(own, i), part(gradients, i), {.to = h.first, .first = h.global, .count = h.count}, ctx_);
    const Tensor of_parts = ctx_.zeros({2, plan_.part_rows, own.dim(2), own.dim(3)});
    sums_.backward(whole_, own, dk, dv);
    sums_.backward(parts_, own, part(of_parts, 0), part(of_parts, 1));
    sums_.reduce_weight_gradients();
    return_parts(of_parts, {dk, dv});
  }

 private:
  // Gathers the tokens of this rank's pools whose tokens are not in adjacent rows of this rank, and sends other ranks
  // the tokens that their pools need. Collective.
  PoolTokens bring_parts() {
    std::vector<Tensor> tokens{whole_.k, whole_.v};
    const bool scores_values = whole_.scored.raw() == whole_.v.raw();
    if (!scores_values) tokens.push_back(whole_.scored);
    const std::int64_t count = std::ssize(tokens);
    const Tensor parts = tensors(count, plan_.part_rows, whole_.k.dtype());
    for (std::int64_t i = 0; i < count; ++i) move_all(part(parts, i), tokens[static_cast<std::size_t>(i)], plan_.own);
    std::vector<Tensor> in = messages(plan_.receives, count, parts.dtype()),
                        out = messages(plan_.sends, count, parts.dtype());
    for (std::size_t m = 0; m < out.size(); ++m)
      for (std::int64_t i = 0; i < count; ++i)
        move_all(part(out[m], i), tokens[static_cast<std::size_t>(i)], plan_.sends[m].moves);
    if (plan_.any_travels) send(transfers(plan_.sends, out), transfers(plan_.receives, in));
    for (std::size_t m = 0; m < in.size(); ++m)
      for (std::int64_t i = 0; i < count; ++i) move_all(part(parts, i), part(in[m], i), plan_.receives[m].moves);
    return {part(parts, 0), part(parts, 1), part(parts, scores_values ? 1 : 2), plan_.parts};
  }

  // Sends the f32 gradients of keys and values to the ranks that hold the tokens. Collective.
  void return_parts(const Tensor& parts, const std::vector<Tensor>& gradients) {
    add_all(gradients, parts, plan_.own);
    if (!plan_.any_travels) return;
    std::vector<Tensor> in = messages(plan_.sends, 2, DType::f32), out = messages(plan_.receives, 2, DType::f32);
    for (std::size_t m = 0; m < out.size(); ++m)
      for (int i = 0; i < 2; ++i)
        for (const RowMove& r : plan_.receives[m].moves)
          move_rows(part(out[m], i), part(parts, i), {.to = r.first, .first = r.to, .count = r.count}, ctx_);
    send(transfers(plan_.receives, out), transfers(plan_.sends, in));
    for (std::size_t m = 0; m < in.size(); ++m) add_all(gradients, in[m], plan_.sends[m].moves);
  }

  // Adds gradients to the rows from which the tokens were copied.
  void add_all(const std::vector<Tensor>& to, const Tensor& from, const std::vector<RowMove>& moves) const {
    for (const RowMove& m : moves)
      for (int i = 0; i < 2; ++i) {
        const Tensor sum = to[static_cast<std::size_t>(i)].narrow(0, m.first, m.count);
        axpby_kernel({.x = part(from, i).narrow(0, m.to, m.count), .y = sum, .out = sum, .alpha = 1, .beta = 1}, ctx_);
      }
  }
  Tensor tensors(std::int64_t count, std::int64_t rows, DType type) const {
    return ctx_.empty({count, rows, whole_.k.dim(1), whole_.k.dim(2)}, type);
  }
  std::vector<Tensor> messages(const std::vector<PoolPlan::Message>& of, std::int64_t count, DType type) const {
    std::vector<Tensor> all;
    for (const PoolPlan::Message& m : of) all.push_back(tensors(count, m.count, type));
    return all;
  }
  static std::vector<Transfer> transfers(const std::vector<PoolPlan::Message>& of, const std::vector<Tensor>& tensors) {
    std::vector<Transfer> all;
    for (std::size_t m = 0; m < of.size(); ++m) all.push_back({tensors[m], of[m].peer});
    return all;
  }
  // Runs an exchange that is ordered like a kernel on the stream.
  void send(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) const {
    exchange_.exchange(sends, receives, ctx_).wait(ctx_.stream);
  }
  void move_all(const Tensor& dst, const Tensor& src, const std::vector<RowMove>& moves) const {
    for (const RowMove& m : moves) move_rows(dst, src, m, ctx_);
  }

  const PoolPlan& plan_;
  ContextParallel& exchange_;
  const ExecContext& ctx_;
  PoolSums sums_;
  PoolTokens whole_, parts_;
};

// Returns how many pools end before the last of these queries.
std::int32_t seen(const Span& queries, std::int32_t size) {
  return (queries.position + queries.count - 1 - queries.document) / size;
}

std::vector<PoolCall> calls_of(const PoolPlan& plan, const ContextShards& shards) {
  std::vector<PoolCall> calls;
  for (const AttentionCall& c : calls_with_keys(shards, shards.rank, plan.pools.documents)) {
    PoolCall call;
    for (std::size_t i = 0; i < c.queries.size(); ++i) {
      Span pools = c.keys[i];
      pools.count = std::min(pools.count, seen(c.queries[i], plan.size));
      if (pools.count > 0) call.queries.push_back(c.queries[i]), call.keys.push_back(pools);
    }
    if (!call.queries.empty()) calls.push_back(std::move(call));
  }
  if (calls.empty()) calls.emplace_back();
  return calls;
}

}  // namespace

PoolPlans pool_plans(const ContextShards& shards, const std::vector<std::int32_t>& sizes) {
  PoolPlans plans;
  for (const std::int32_t size : sizes) plans.push_back(pool_plan(shards, size));
  return plans;
}

std::vector<PoolKeys> pools_of_shards(const PoolSource& source, const PoolPlans& plans, const ContextShards& shards,
                                      ContextParallel& exchange, const ExecContext& ctx) {
  std::vector<PoolKeys> all;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].pools.tokens() == 0) continue;
    const auto made = std::make_shared<ShardedPools>(source, i, plans[i], exchange, ctx);
    all.push_back(made->keys());
    all.back().calls = calls_of(plans[i], shards);
    all.back().backward = [made](const Tensor& gradients, const Tensor& dk, const Tensor& dv) {
      made->backward(gradients, dk, dv);
    };
  }
  return all;
}

}  // namespace ring
