// Attention by the schedule all_to_all: selects blocks, makes pools and calls watches as for whole sequences, because
// each rank has all rows of its heads.

#include "kernels/attention/pairs.h"
#include "kernels/attention/selected/block_select.h"
#include "parallel/context/head_exchange.h"
#include "parallel/context/heads.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

class AttentionByHeads final : public ContextParallel {
 public:
  explicit AttentionByHeads(Communicator& comm) : ContextParallel(comm) {}
  std::string_view schedule() const override { return "all_to_all"; }

  BlockSelection forward(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
                         const ExecContext& ctx, const AttentionWatch& watch) override {
    const Attention& a = args.pairs;
    const PoolOperands& pools = args.pools;
    BlockSelection selection = a.selection;
    const std::int64_t room = a.pattern.selects() ? list_room(a, shards) : 1;
    std::vector<Tensor> inputs = {a.q, a.k, a.v};
    if (pools.scored.defined()) inputs.push_back(pools.scored);
    const auto compute = [&](KvHeads heads, const HeadTensors& in, const HeadTensors& results) {
      PooledAttention some{{}, {of_heads(pools.weights, heads), in.by_head[0], {}, results.by_head[1]}};
      Attention& pairs = some.pairs;
      set_up(pairs, a, in, heads, shards, ctx);
      pairs.out = results.by_row[0], pairs.lse = results.by_head[0];
      if (pools.scored.defined()) some.pools.scored = in.by_row[3];
      if (!a.selection.kept.defined()) {
        pairs.selection = select_blocks(pairs.pattern, pairs.q, pairs.k, a.scale, shards->documents, ctx, room);
        add_heads(selection, own_heads(a.k.dim(1)), pairs.selection, heads, ctx);
      }
      pooled_attention(some, ctx);
      if (watch) watch(some, counted_from(own_heads(a.k.dim(1)), heads));
    };
    exchange_heads({inputs, {pools.gates}}, {{a.out}, {a.lse, pools.mean_gates}}, a.k.dim(1), *shards, *this, compute,
                   ctx);
    return selection;
  }

  void backward(const PooledAttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                const ExecContext& ctx) override {
    const AttentionBackward& a = args.pairs;
    const PoolBackwardOperands& pools = args.pools;
    const auto compute = [&](KvHeads heads, const HeadTensors& in, const HeadTensors& results) {
      AttentionBackward pairs;
      set_up(pairs, a, in, heads, shards, ctx);
      pairs.out = in.by_row[3], pairs.dout = in.by_row[4], pairs.lse = in.by_head[0];
      pairs.dq = results.by_row[0], pairs.dk = results.by_row[1], pairs.dv = results.by_row[2];
      pooled_attention_backward(
          {pairs, {of_heads(pools.weights, heads), of_heads(pools.dweights, heads), in.by_head[1], results.by_head[0]}},
          ctx);
    };
    exchange_heads({{a.q, a.k, a.v, a.out, a.dout}, {a.lse, pools.gates}}, {{a.dq, a.dk, a.dv}, {pools.dgates}},
                   a.k.dim(1), *shards, *this, compute, ctx);
  }

  SelectionPart selection_part(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                               std::int64_t kv_heads) override {
    const KvHeads own = own_heads(kv_heads);
    return {own, own_patterns_.get(shards, pattern, kv_heads, own), shards->documents};
  }
  double pairs(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
               std::int64_t kv_heads) override {
    const SelectionPart own = selection_part(shards, pattern, kv_heads);
    return static_cast<double>(own.heads.count) * kept_pairs(own.pattern, own.spans, own.spans, own.heads.count);
  }

 private:
  // Returns the capacity (`room`) of the selection's lists for all of this rank's heads. Every group of heads uses this
  // same capacity.
  std::int64_t list_room(const Attention& a, const std::shared_ptr<const ContextShards>& shards) {
    const SelectionPart own = selection_part(shards, a.pattern, a.k.dim(1));
    return own.pattern.selects() ? max_kept_blocks(own.pattern, own.heads.count, own.spans) : 1;
  }

  // Sets the arguments that the forward and the backward of a group share. A given selection is for this rank's heads.
  template <class Args>
  void set_up(Args& some, const Args& all, const HeadTensors& in, KvHeads heads,
              const std::shared_ptr<const ContextShards>& shards, const ExecContext& ctx) {
    const std::int64_t kv_heads = all.k.dim(1);
    set_heads(some, all, heads, in);
    some.queries = some.keys = shards->documents;
    some.pattern = patterns_.get(shards, all.pattern, kv_heads, heads);
    if (all.selection.kept.defined())
      some.selection = of_heads(all.selection, counted_from(own_heads(kv_heads), heads), some.pattern, ctx);
  }

  HeadPatterns patterns_;      // of groups
  HeadPatterns own_patterns_;  // of all heads of this rank
};

}  // namespace

std::unique_ptr<ContextParallel> make_all_to_all(Communicator& comm) {
  return std::make_unique<AttentionByHeads>(comm);
}

}  // namespace ring
