// All keys to every rank.

#include <algorithm>

#include "kernels/elementwise.h"
#include "parallel/context/cache.h"
#include "parallel/context/exchange.h"
#include "parallel/context/sums.h"

namespace ring {
namespace {

struct GatherPlan {
  std::vector<AttentionCall> rounds;
  std::int64_t rows = 0, most = 0;  // of the micro-batch; of one rank
};

class Gather final : public ContextParallel {
 public:
  explicit Gather(Communicator& comm) : ContextParallel(comm) {}
  std::string_view schedule() const override { return "gather"; }

  BlockSelection forward(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
                         const ExecContext& ctx, const AttentionWatch& watch) override {
    const PooledAttention whole = with_selection(args, *shards, ctx);
    PooledAttention pairs = whole;
    const Tensor pooled_lse = carry_pools(pairs, shared_pools(pool_source(whole), shards, ctx), ctx);
    const GatherPlan& plan = plan_for(shards, pairs.pattern);
    const KvPair all = gather(*shards, plan, args.k, args.v, ctx);
    ForwardSum sum(pairs, calls_of(plan.rounds), ctx);
    sum.add(plan.rounds, all.k, all.v);
    mean_gates(whole, pooled_lse, ctx);
    show(whole, shards, ctx, watch);
    return whole.selection;
  }

  void backward(const PooledAttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                const ExecContext& ctx) override {
    PooledAttentionBackward pairs = args;
    carry_pools(pairs, shared_pools(pool_source(args), shards, ctx), ctx);
    const GatherPlan& plan = plan_for(shards, pairs.pattern);
    KvPair all = gather(*shards, plan, args.k, args.v, ctx);
    BackwardSum sum(pairs, calls_of(plan.rounds), ctx);
    KvPair gradients;
    sum.add(plan.rounds, all.k, all.v, gradients);
    if (!gradients.k.defined()) gradients = no_gradients(all.k, ctx);
    all = {};
    const KvPair own = scatter(*shards, plan, gradients, ctx);
    store_sum(args.dk, own.k, pairs.carry_dk, ctx);
    store_sum(args.dv, own.v, pairs.carry_dv, ctx);
  }

 private:
  const GatherPlan& plan_for(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern) {
    check_shards(*shards);
    return plans_.get(shards, pattern, 0, [&] {
      GatherPlan plan{rounds_with_all(*shards, shards->rank, pattern), shards->tokens(), 0};
      for (int r = 0; r < shards->ranks(); ++r) plan.most = std::max(plan.most, shards->tokens(r));
      return plan;
    });
  }

  // fn(rank r's part of `parts` [ranks,2,most,H,D], its neighbouring rows)
  template <class Fn>
  static void for_held(const ContextShards& shards, const Tensor& parts, const Fn& fn) {
    for (int r = 0; r < shards.ranks(); ++r) {
      const KvPair part = kv_pair(parts.narrow(0, r, 1).view({2, parts.dim(2), parts.dim(3), parts.dim(4)}));
      for (const HeldRows& h : shards.held[static_cast<std::size_t>(r)]) fn(part, h);
    }
  }

  // In the micro-batch's order.
  KvPair gather(const ContextShards& shards, const GatherPlan& plan, const Tensor& k, const Tensor& v,
                const ExecContext& ctx) {
    const std::int64_t heads = k.dim(1), dim = k.dim(2);
    const Tensor parts = ctx.empty({comm_.size(), 2, plan.most, heads, dim}, k.dtype());
    const Tensor mine = parts.narrow(0, comm_.rank(), 1).view({2, plan.most, heads, dim});
    const KvPair own = kv_pair(mine);
    move_rows(own.k, k, {.count = k.dim(0)}, ctx);
    move_rows(own.v, v, {.count = k.dim(0)}, ctx);
    bytes_sent_ += static_cast<std::int64_t>(mine.bytes()) * (comm_.size() - 1);
    comm_.all_gather(parts, mine, ctx.stream.record()).wait(ctx.stream);
    const KvPair all = kv_pair(ctx.empty({2, plan.rows, heads, dim}, k.dtype()));
    for_held(shards, parts, [&](const KvPair& part, const HeldRows& h) {
      move_rows(all.k, part.k, {.to = h.global, .first = h.first, .count = h.count}, ctx);
      move_rows(all.v, part.v, {.to = h.global, .first = h.first, .count = h.count}, ctx);
    });
    return all;
  }

  KvPair scatter(const ContextShards& shards, const GatherPlan& plan, const KvPair& gradients, const ExecContext& ctx) {
    const std::int64_t heads = gradients.k.dim(1), dim = gradients.k.dim(2);
    const Tensor parts = ctx.zeros({comm_.size(), 2, plan.most, heads, dim});  // sums read the padding, too
    for_held(shards, parts, [&](const KvPair& part, const HeldRows& h) {
      move_rows(part.k, gradients.k, {.to = h.first, .first = h.global, .count = h.count}, ctx);
      move_rows(part.v, gradients.v, {.to = h.first, .first = h.global, .count = h.count}, ctx);
    });
    const Tensor mine = ctx.empty({2, plan.most, heads, dim});
    bytes_sent_ += static_cast<std::int64_t>(mine.bytes()) * (comm_.size() - 1);
    comm_.reduce_scatter(mine, parts, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
    return kv_pair(mine);
  }

  // The first rows, which are those of this rank. carry: may be undefined.
  static void store_sum(const Tensor& dst, const Tensor& rows, const Tensor& carry, const ExecContext& ctx) {
    const Tensor own = rows.narrow(0, 0, dst.dim(0));
    if (carry.defined() && carry.numel() > 0)
      axpby_kernel({.x = carry, .y = own, .out = own, .alpha = 1, .beta = 1}, ctx);
    store(dst, own, ctx);
  }

  PlanCache<GatherPlan> plans_;
};

}  // namespace

std::unique_ptr<ContextParallel> make_gather(Communicator& comm) { return std::make_unique<Gather>(comm); }

}  // namespace ring
