// Attention by the schedules that move keys: pools, block selections and watches around attention over pairs.

#include <algorithm>

#include "parallel/context/heads.h"
#include "parallel/context/key_schedule.h"
#include "parallel/context/pools/shard_pools.h"
#include "parallel/context/selected/shard_selection.h"

namespace ring {
namespace {

// Upper bound on the bytes of all ranks' keys that are gathered at a time for a watch. Beyond this, KV heads are
// gathered in groups.
constexpr std::int64_t kMaxShown = std::int64_t{1} << 28;

class AttentionByKeys final : public ContextParallel {
 public:
  AttentionByKeys(Communicator& comm, std::unique_ptr<KeySchedule> schedule, ContextKeys keys)
      : ContextParallel(comm), schedule_(std::move(schedule)), keys_(keys) {}
  std::string_view schedule() const override { return schedule_->name(); }
  std::int64_t bytes_sent() const override { return bytes_sent_ + schedule_->bytes_sent(); }

  BlockSelection forward(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
                         const ExecContext& ctx, const AttentionWatch& watch) override {
    PooledAttention whole = args;
    select_for_own_rows(whole.pairs, *shards, *this, ctx);
    PooledAttention call = whole;
    const Tensor pooled_lse = attend_to_pools(call, pools_of(whole, shards, ctx), ctx);
    schedule_->attend(call.pairs, {shards, referenced_keys(call.pairs, *shards, ctx)}, ctx);
    write_mean_gates(whole, pooled_lse, ctx);
    call_watch(whole, shards, ctx, watch);
    return whole.pairs.selection;
  }
  void backward(const PooledAttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                const ExecContext& ctx) override {
    PooledAttentionBackward call = args;
    attend_to_pools(call, pools_of(args, shards, ctx), ctx);
    schedule_->attend_backward(call.pairs, {shards, referenced_keys(call.pairs, *shards, ctx)}, ctx);
  }
  // Returns the part of the block selection that this rank makes: all heads and documents, but only its own query rows.
  SelectionPart selection_part(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                               std::int64_t kv_heads) override {
    return {{0, kv_heads}, pattern, shards->documents, true};
  }

 private:
  // Returns unknown references if the pattern does not select, or if all keys are sent.
  template <class Args>
  KeyReferences referenced_keys(const Args& a, const ContextShards& shards, const ExecContext& ctx) {
    check_shards(shards);
    const bool waits = ctx.stream.device().backend != Backend::cpu;
    if (!a.pattern.selects() || keys_ == ContextKeys::all || (keys_ == ContextKeys::automatic && waits)) return {};
    return gather_references(a.selection, a.pattern, shards, *this, ctx);
  }

  template <class Args>
  std::vector<PoolKeys> pools_of(const Args& args, const std::shared_ptr<const ContextShards>& shards,
                                 const ExecContext& ctx) {
    const PoolSource source = pool_source(args);
    const auto make = [&] { return pool_plans(*shards, source.sizes); };
    return pools_of_shards(source, pool_plans_.get(shards, {.pools = source.sizes}, 0, make), *shards, *this, ctx);
  }

  // Calls the watch, if set, with the call and its results. Gathers the keys of whole documents for it.
  void call_watch(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
                  const ExecContext& ctx, const AttentionWatch& watch) {
    if (!watch) return;
    const auto& [all, pools] = args;
    const std::int64_t heads = all.k.dim(1), per = all.q.dim(1) / heads;
    const std::int64_t each = shards->tokens() * all.k.dim(2) * size_of(all.k.dtype());
    std::int64_t some = heads;
    while (some > 1 && (heads % some != 0 || some * each > kMaxShown)) --some;
    for (std::int64_t first = 0; first < heads; first += some) {
      const KvHeads part{first, some};
      PooledAttention watched{of_heads(all, part, watched_patterns_.get(shards, all.pattern, heads, part), ctx),
                              {of_heads(pools.weights, part)}};
      if (pools.gates.defined()) watched.pools.gates = pools.gates.narrow(0, first * per, some * per);
      Attention& a = watched.pairs;
      a.k = all_rows(a.k, *shards, ctx), a.v = a.out = {};
      for (const AttentionCall& call : calls_with_documents(*shards, shards->rank, all.pattern)) {
        a.queries = call.queries, a.keys = call.keys, a.selection.rows = call.block_rows;
        watch(watched, part);
      }
    }
  }

  std::unique_ptr<KeySchedule> schedule_;
  ContextKeys keys_;
  HeadPatterns watched_patterns_;
  PlanCache<PoolPlans> pool_plans_;  // by Pattern::pools alone
};

}  // namespace

std::unique_ptr<ContextParallel> make_ring(Communicator& comm, const RingOptions& options) {
  return std::make_unique<AttentionByKeys>(comm, make_ring_schedule(comm, options), options.keys);
}

std::unique_ptr<ContextParallel> make_gather(Communicator& comm, ContextKeys keys, ContextMessages messages) {
  return std::make_unique<AttentionByKeys>(comm, make_gather_schedule(comm, messages), keys);
}

}  // namespace ring
