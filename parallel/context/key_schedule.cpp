#include "parallel/context/key_schedule.h"

#include <algorithm>

#include "autograd/block_means.h"
#include "core/fake.h"
#include "kernels/attention/selected/block_select.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

// Upper bound on the bytes of all ranks' keys that are gathered at a time for a watch. Beyond this, KV heads are
// gathered in groups.
constexpr std::int64_t kMaxShown = std::int64_t{1} << 28;

// Returns for each rank the rows of the block selection that are for the rank's own queries.
std::vector<std::vector<SelectedRows>> local_blocks_of_all_ranks(ContextShards shards, const Pattern& pattern) {
  std::vector<std::vector<SelectedRows>> local;
  for (shards.rank = 0; shards.rank < shards.ranks(); ++shards.rank)
    local.push_back(blocks_with_local_rows(shards, pattern));
  return local;
}

std::int64_t rows_of(const std::vector<SelectedRows>& runs) {
  std::int64_t rows = 0;
  for (const SelectedRows& r : runs) rows += r.end - r.begin;
  return rows;
}

// Returns the bits, copied to the host. In a dry run without memory all blocks count as selected, which takes the most
// memory.
std::vector<std::int32_t> on_host(const Tensor& bits, const Stream& stream) {
  if (!has_bytes(bits)) return std::vector<std::int32_t>(static_cast<std::size_t>(bits.numel()), -1);
  return to_host<std::int32_t>(bits.view({bits.numel()}), stream);
}

}  // namespace

BlockSelection KeySchedule::forward(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
                                    const ExecContext& ctx, const AttentionWatch& watch) {
  const PooledAttention whole = with_selection(args, *shards, ctx);
  PooledAttention call = whole;
  const Tensor pooled_lse = attend_to_pools(call, shared_pools(pool_source(whole), shards, ctx), ctx);
  attend(call.pairs, {shards, referenced_keys(call.pairs.pattern, call.pairs.selection, *shards, ctx)}, ctx);
  write_mean_gates(whole, pooled_lse, ctx);
  call_watch(whole, shards, ctx, watch);
  return whole.pairs.selection;
}

void KeySchedule::backward(const PooledAttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                           const ExecContext& ctx) {
  PooledAttentionBackward call = args;
  attend_to_pools(call, shared_pools(pool_source(args), shards, ctx), ctx);
  attend_backward(call.pairs, {shards, referenced_keys(call.pairs.pattern, call.pairs.selection, *shards, ctx)}, ctx);
}

Tensor KeySchedule::receive_message(const KeyRequest& need, const Tensor& like, DType type, const ExecContext& ctx) {
  return message_in(need, like, type, [&](std::int64_t size) { return receive_buffer({size}, type, ctx); });
}

PooledAttention KeySchedule::with_selection(PooledAttention call, const ContextShards& shards, const ExecContext& ctx) {
  Attention& a = call.pairs;
  if (!a.pattern.selects() || a.selection.bits.defined()) return call;
  const std::int64_t kv_heads = a.k.dim(1);
  const std::vector<Tensor> means = block_means({a.q, a.k}, kv_heads, shards, a.pattern, *this, ctx);
  std::int32_t max = 0;
  for (const Span& d : shards.documents) max = std::max(max, blocks_of(a.pattern, d));
  a.selection.bits = ctx.zeros({means[0].dim(0), kv_heads, (max + 31) / 32}, DType::i32);
  block_select_kernel({.queries = means[0],
                       .keys = means[1],
                       .bits = a.selection.bits,
                       .documents = blocks_with_local_rows(shards, a.pattern),
                       .blocks = a.pattern.blocks,
                       .scale = scale_of_means(a.scale, a.q.dim(1), kv_heads)},
                      ctx);
  return call;
}

KeyReferences KeySchedule::referenced_keys(const Pattern& pattern, const BlockSelection& own,
                                           const ContextShards& shards, const ExecContext& ctx) {
  check_shards(shards);
  const bool waits = ctx.stream.device().backend != Backend::cpu;
  if (!pattern.selects() || keys_ == ContextKeys::all || (keys_ == ContextKeys::automatic && waits)) return {};
  const std::vector<std::vector<SelectedRows>> local = local_blocks_of_all_ranks(shards, pattern);
  std::int64_t max = 0;
  for (const std::vector<SelectedRows>& runs : local) max = std::max(max, rows_of(runs));
  const std::int64_t heads = own.bits.dim(1), words = own.bits.dim(2);
  const Tensor parts = ctx.zeros({comm_.size(), max, heads, words}, DType::i32);
  const Tensor mine = parts.narrow(0, comm_.rank(), 1).view({max, heads, words});
  std::int64_t at = 0;
  for (const SelectedRows& r : local[static_cast<std::size_t>(comm_.rank())]) {
    move_rows(mine, own.bits, {.to = at, .first = r.bits + r.begin, .count = r.end - r.begin}, ctx);
    at += r.end - r.begin;
  }
  bytes_sent_ += static_cast<std::int64_t>(mine.bytes()) * (comm_.size() - 1);
  comm_.all_gather(parts, mine, ctx.stream.record()).wait(ctx.stream);
  const std::vector<std::int32_t> bits = on_host(parts, ctx.stream);
  KeyReferences all(own.bits.dim(0), heads, words);
  for (std::int64_t r = 0; r < comm_.size(); ++r) {
    const std::int32_t* next = bits.data() + r * max * heads * words;
    for (const SelectedRows& run : local[static_cast<std::size_t>(r)]) {
      all.add(next, run.bits + run.begin, run.end - run.begin);
      next += (run.end - run.begin) * heads * words;
    }
  }
  return all;
}

std::vector<PoolKeys> KeySchedule::shared_pools(const PoolSource& source,
                                                const std::shared_ptr<const ContextShards>& shards,
                                                const ExecContext& ctx) {
  if (source.sizes.empty()) return {};
  const PoolPlans& plans = pool_plans_.get(shards, source.sizes);
  const auto send = [this, &ctx](const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) {
    exchange(sends, receives, ctx).wait(ctx.stream);
  };
  return pools_of_shards(source, plans, *shards, *this, send, ctx);
}

void KeySchedule::call_watch(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
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

}  // namespace ring
