#include "parallel/context/exchange.h"

#include <algorithm>

#include "autograd/block_means.h"
#include "core/fake.h"
#include "kernels/attention/block_select.h"
#include "parallel/context/rows.h"

namespace ring {
namespace {

constexpr std::int64_t kMostShown = std::int64_t{1} << 28;  // bytes of the keys of all ranks that are gathered at once

// The rows of a selection that each rank has, those of its own queries.
std::vector<std::vector<SelectedRows>> held_by_all(ContextShards shards, const Pattern& pattern) {
  std::vector<std::vector<SelectedRows>> held;
  for (shards.rank = 0; shards.rank < shards.ranks(); ++shards.rank) held.push_back(held_blocks(shards, pattern));
  return held;
}

std::int64_t rows_of(const std::vector<SelectedRows>& runs) {
  std::int64_t rows = 0;
  for (const SelectedRows& r : runs) rows += r.end - r.begin;
  return rows;
}

// Every block in a step without computing, as that takes the most memory.
std::vector<std::int32_t> on_host(const Tensor& bits, const Stream& stream) {
  if (!has_bytes(bits)) return std::vector<std::int32_t>(static_cast<std::size_t>(bits.numel()), -1);
  return to_host<std::int32_t>(bits.view({bits.numel()}), stream);
}

}  // namespace

void ContextParallel::check_shards(const ContextShards& s) const {
  RING_CHECK(s.ranks() == comm_.size() && s.rank == comm_.rank(), "context exchange: the sequences are cut for rank ",
             s.rank, " of ", s.ranks(), ", this is rank ", comm_.rank(), " of ", comm_.size());
}

Work ContextParallel::exchange(std::vector<Transfer> sends, std::vector<Transfer> receives, const ExecContext& ctx) {
  for (std::vector<Transfer>* list : {&sends, &receives})
    std::erase_if(*list, [](const Transfer& t) { return t.tensor.numel() == 0; });
  for (const Transfer& t : sends)
    if (t.peer != comm_.rank()) bytes_sent_ += static_cast<std::int64_t>(t.tensor.bytes());
  return comm_.exchange(sends, receives, ctx.stream.record());
}

Tensor ContextParallel::receive_message(const NeededKeys& need, const Tensor& like, DType type,
                                        const ExecContext& ctx) {
  return message_in(need, like, [&](std::int64_t size) { return receive_buffer({size}, type, ctx); });
}

// Gathered with as many rows of each rank, and put in order: what exchange() receives in may be kept for ever.
Tensor ContextParallel::all_rows(const Tensor& t, const ContextShards& shards, const ExecContext& ctx) {
  check_shards(shards);
  std::int64_t most = 0;
  for (int r = 0; r < shards.ranks(); ++r) most = std::max(most, shards.tokens(r));
  const std::int64_t heads = t.dim(1), dim = t.dim(2);
  const Tensor parts = ctx.empty({shards.ranks(), most, heads, dim}, t.dtype());
  const auto part = [&](int r) { return parts.narrow(0, r, 1).view({most, heads, dim}); };
  const Tensor own = part(comm_.rank());
  move_rows(own, t, {.count = t.dim(0)}, ctx);
  bytes_sent_ += static_cast<std::int64_t>(own.bytes()) * (comm_.size() - 1);
  comm_.all_gather(parts, own, ctx.stream.record()).wait(ctx.stream);
  const Tensor all = ctx.empty({shards.tokens(), heads, dim}, t.dtype());
  for (int r = 0; r < shards.ranks(); ++r)
    for (const HeldRows& h : shards.held[static_cast<std::size_t>(r)])
      move_rows(all, part(r), {.to = h.global, .first = h.first, .count = h.count}, ctx);
  return all;
}

void ContextParallel::sum(const Tensor& t, const ExecContext& ctx) {
  bytes_sent_ += 2 * static_cast<std::int64_t>(t.bytes()) * (comm_.size() - 1) / comm_.size();
  comm_.all_reduce(t, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
}

PooledAttention ContextParallel::with_selection(PooledAttention a, const ContextShards& shards,
                                                const ExecContext& ctx) {
  if (!a.pattern.selects() || a.selection.bits.defined()) return a;
  const std::int64_t kv_heads = a.k.dim(1);
  const std::vector<Tensor> means = block_means({a.q, a.k}, kv_heads, shards, a.pattern, *this, ctx);
  std::int32_t most = 0;
  for (const Span& d : shards.documents) most = std::max(most, blocks_of(a.pattern, d));
  a.selection.bits = ctx.zeros({means[0].dim(0), kv_heads, (most + 31) / 32}, DType::i32);
  block_select_kernel({.queries = means[0],
                       .keys = means[1],
                       .bits = a.selection.bits,
                       .documents = held_blocks(shards, a.pattern),
                       .blocks = a.pattern.blocks,
                       .scale = scale_of_means(a.scale, a.q.dim(1), kv_heads)},
                      ctx);
  return a;
}

SelectedKeys ContextParallel::selected_keys(const Pattern& pattern, const BlockSelection& own,
                                            const ContextShards& shards, const ExecContext& ctx) {
  check_shards(shards);
  const bool waits = ctx.stream.device().backend != Backend::cpu;
  if (!pattern.selects() || keys_ == ContextKeys::all || (keys_ == ContextKeys::automatic && waits)) return {};
  const std::vector<std::vector<SelectedRows>> held = held_by_all(shards, pattern);
  std::int64_t most = 0;
  for (const std::vector<SelectedRows>& runs : held) most = std::max(most, rows_of(runs));
  const std::int64_t heads = own.bits.dim(1), words = own.bits.dim(2);
  const Tensor parts = ctx.zeros({comm_.size(), most, heads, words}, DType::i32);
  const Tensor mine = parts.narrow(0, comm_.rank(), 1).view({most, heads, words});
  std::int64_t at = 0;
  for (const SelectedRows& r : held[static_cast<std::size_t>(comm_.rank())]) {
    move_rows(mine, own.bits, {.to = at, .first = r.bits + r.begin, .count = r.end - r.begin}, ctx);
    at += r.end - r.begin;
  }
  bytes_sent_ += static_cast<std::int64_t>(mine.bytes()) * (comm_.size() - 1);
  comm_.all_gather(parts, mine, ctx.stream.record()).wait(ctx.stream);
  const std::vector<std::int32_t> bits = on_host(parts, ctx.stream);
  SelectedKeys all(own.bits.dim(0), heads, words);
  for (std::int64_t r = 0; r < comm_.size(); ++r) {
    const std::int32_t* next = bits.data() + r * most * heads * words;
    for (const SelectedRows& run : held[static_cast<std::size_t>(r)]) {
      all.add(next, run.bits + run.begin, run.end - run.begin);
      next += (run.end - run.begin) * heads * words;
    }
  }
  return all;
}

std::vector<PoolKeys> ContextParallel::shared_pools(const PoolSource& source,
                                                    const std::shared_ptr<const ContextShards>& shards,
                                                    const ExecContext& ctx) {
  if (source.sizes.empty()) return {};
  const PoolPlans& plans = pool_plans_.get(shards, source.sizes);
  const auto send = [this, &ctx](const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) {
    exchange(sends, receives, ctx).wait(ctx.stream);
  };
  return pools_of_shards(source, plans, *shards, *this, send, ctx);
}

void ContextParallel::show(const PooledAttention& args, const std::shared_ptr<const ContextShards>& shards,
                           const ExecContext& ctx, const AttentionWatch& watch) {
  if (!watch) return;
  const std::int64_t heads = args.k.dim(1);
  const std::int64_t each = shards->tokens() * args.k.dim(2) * size_of(args.k.dtype());
  std::int64_t some = heads;
  while (some > 1 && (heads % some != 0 || some * each > kMostShown)) --some;
  for (std::int64_t first = 0; first < heads; first += some) {
    const KvHeads part{first, some};
    PooledAttention a(of_heads(args, part, watched_patterns_.get(shards, args.pattern, heads, part)),
                      of_heads(args.weights, part));
    const std::int64_t per = args.q.dim(1) / heads;
    if (args.gates.defined()) a.gates = args.gates.narrow(0, first * per, some * per);
    a.selection = of_heads(args.selection, part, a.pattern, ctx);
    a.k = all_rows(a.k, *shards, ctx), a.v = a.out = {};
    for (const AttentionCall& call : calls_with_documents(*shards, shards->rank, args.pattern)) {
      a.queries = call.queries, a.keys = call.keys, a.selection.rows = call.block_rows;
      watch(a, part);
    }
  }
}

int ranks_per_node(const std::vector<int>& nodes) {
  const int all = static_cast<int>(nodes.size());
  const int first = static_cast<int>(std::count(nodes.begin(), nodes.end(), nodes.empty() ? 0 : nodes[0]));
  if (first == 0 || all % first) return all;
  for (int r = 0; r < all; ++r) {
    const int begin = r / first * first;
    if (nodes[static_cast<std::size_t>(r)] != nodes[static_cast<std::size_t>(begin)]) return all;
    if (r == begin && std::count(nodes.begin(), nodes.end(), nodes[static_cast<std::size_t>(r)]) != first) return all;
  }
  return first;
}

std::unique_ptr<ContextParallel> make_context_parallel(Communicator& comm, ContextSchedule schedule,
                                                       const RingOptions& ring) {
  switch (schedule) {
    case ContextSchedule::automatic: return make_measured_context(comm, ring);
    case ContextSchedule::ring: return make_ring(comm, ring);
    case ContextSchedule::gather: return make_gather(comm, ring.keys);
    case ContextSchedule::all_to_all: return make_all_to_all(comm);
  }
  fail("context exchange: no such schedule");
}

}  // namespace ring
