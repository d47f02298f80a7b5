// Attention with the hybrid schedule: the ranks of a node exchange heads, so that each rank has all rows of its node
// for some heads. A ring between nodes, with nodes in place of ranks, reaches the other rows and makes the pools.

#include "core/upload.h"
#include "parallel/context/head_exchange.h"
#include "parallel/context/heads.h"
#include "parallel/context/layout.h"
#include "parallel/context/node_shards.h"
#include "parallel/context/plan.h"

namespace ring {
namespace {

class AttentionByNodes final : public ContextParallel {
 public:
  AttentionByNodes(const ContextRanks& ranks, const RingOptions& options)
      : ContextParallel(ranks.all), node_(*ranks.node), per_node_(ranks.node->size()) {
    RingOptions between = options;
    between.per_node = 0;
    ring_ = make_ring(*ranks.between_nodes, between);
  }
  std::string_view schedule() const override { return "hybrid"; }
  std::int64_t bytes_sent() const override { return bytes_sent_ + node_.bytes_sent() + ring_->bytes_sent(); }

  BlockSelection forward(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
                         const ExecContext& ctx, const AttentionWatch& watch) override {
    const Attention& a = args.pairs;
    const PoolOperands& pools = args.pools;
    RING_CHECK(!watch, "context exchange by hybrid: no rank has whole sequences that could be watched");
    const NodeShards& s = shards_of(a, shards);
    const Tensor rows = dropout_rows(a, s, ctx);
    std::vector<Tensor> inputs = {a.q, a.k, a.v};
    if (pools.scored.defined()) inputs.push_back(pools.scored);
    const auto compute = [&](KvHeads heads, const HeadTensors& in, const HeadTensors& results) {
      PooledAttention some{{}, {of_heads(pools.weights, heads), in.by_head[0], {}, results.by_head[1]}};
      set_up(some.pairs, a, in, heads, s, rows);
      some.pairs.out = results.by_row[0], some.pairs.lse = results.by_head[0];
      if (pools.scored.defined()) some.pools.scored = in.by_row[3];
      ring_->forward(some, s.between_nodes, ctx, {});
    };
    exchange_heads({inputs, {pools.gates}}, {{a.out}, {a.lse, pools.mean_gates}}, a.k.dim(1), *s.in_node, node_,
                   compute, ctx);
    return {};
  }

  void backward(const PooledAttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                const ExecContext& ctx) override {
    const AttentionBackward& a = args.pairs;
    const PoolBackwardOperands& pools = args.pools;
    const NodeShards& s = shards_of(a, shards);
    const Tensor rows = dropout_rows(a, s, ctx);
    const auto compute = [&](KvHeads heads, const HeadTensors& in, const HeadTensors& results) {
      PooledAttentionBackward some{
          {}, {of_heads(pools.weights, heads), of_heads(pools.dweights, heads), in.by_head[1], results.by_head[0]}};
      AttentionBackward& pairs = some.pairs;
      set_up(pairs, a, in, heads, s, rows);
      pairs.out = in.by_row[3], pairs.dout = in.by_row[4], pairs.lse = in.by_head[0];
      pairs.dq = results.by_row[0], pairs.dk = results.by_row[1], pairs.dv = results.by_row[2];
      ring_->backward(some, s.between_nodes, ctx);
    };
    exchange_heads({{a.q, a.k, a.v, a.out, a.dout}, {a.lse, pools.gates}}, {{a.dq, a.dk, a.dv}, {pools.dgates}},
                   a.k.dim(1), *s.in_node, node_, compute, ctx);
  }

  // Returns the pairs of the node's rows for this rank's share of the heads.
  double pairs(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
               std::int64_t kv_heads) override {
    const NodeShards& s = nodes_.get(shards, {}, 0, [&] { return split_by_node(*shards, per_node_); });
    const KvHeads own = node_.own_heads(kv_heads);
    return pairs_of_rank(*s.between_nodes, s.between_nodes->rank, of_heads(pattern, own), own.count);
  }

 private:
  template <class Args>
  const NodeShards& shards_of(const Args& a, const std::shared_ptr<const ContextShards>& shards) {
    check_shards(*shards);
    RING_CHECK(!a.pattern.selects(),
               "context exchange by hybrid: patterns that select blocks need ring, gather or all_to_all");
    return nodes_.get(shards, {}, 0, [&] { return split_by_node(*shards, per_node_); });
  }

  // Returns the row numbers that dropout masks use for the rows of this node; undefined without dropout.
  template <class Args>
  static Tensor dropout_rows(const Args& a, const NodeShards& s, const ExecContext& ctx) {
    const ContextShards& nodes = *s.between_nodes;
    if (a.dropout.rate == 0) return {};
    return upload(global_rows(nodes.rows_by_rank[static_cast<std::size_t>(nodes.rank)]), ctx.stream);
  }

  // Sets the arguments that the forward and the backward of a group of heads share.
  template <class Args>
  void set_up(Args& some, const Args& all, const HeadTensors& in, KvHeads heads, const NodeShards& s,
              const Tensor& rows) {
    set_heads(some, all, heads, in);
    some.dropout.rows = rows;
    some.pattern = patterns_.get(s.between_nodes, all.pattern, all.k.dim(1), heads);
  }

  ContextTransfers node_;
  int per_node_;
  std::unique_ptr<ContextParallel> ring_;  // between nodes
  PlanCache<NodeShards> nodes_;            // the same for all patterns
  HeadPatterns patterns_;                  // patterns of the groups of heads
};

}  // namespace

std::unique_ptr<ContextParallel> make_hybrid(const ContextRanks& ranks, const RingOptions& options) {
  RING_CHECK(ranks.node && ranks.between_nodes && ranks.node->size() * ranks.between_nodes->size() == ranks.all.size(),
             "context exchange by hybrid: no groups of the ranks on a node and between nodes");
  return std::make_unique<AttentionByNodes>(ranks, options);
}

}  // namespace ring
