#include "parallel/context/exchange.h"

#include <algorithm>

#include "parallel/context/rows.h"

namespace ring {

void ContextTransfers::check_shards(const ContextShards& s) const {
  RING_CHECK(s.ranks() == comm_.size() && s.rank == comm_.rank(),
             "context exchange: the sequences are sharded for rank ", s.rank, " of ", s.ranks(), ", but this is rank ",
             comm_.rank(), " of ", comm_.size());
}

Work ContextTransfers::exchange(std::vector<Transfer> sends, std::vector<Transfer> receives, const ExecContext& ctx) {
  for (std::vector<Transfer>* list : {&sends, &receives})
    std::erase_if(*list, [](const Transfer& t) { return t.tensor.numel() == 0; });
  for (const Transfer& t : sends)
    if (t.peer != comm_.rank()) bytes_sent_ += static_cast<std::int64_t>(t.tensor.bytes());
  return comm_.exchange(sends, receives, ctx.stream.record());
}

void ContextTransfers::all_gather(const Tensor& all, const Tensor& own, const ExecContext& ctx) {
  bytes_sent_ += static_cast<std::int64_t>(own.bytes()) * (comm_.size() - 1);
  comm_.all_gather(all, own, ctx.stream.record()).wait(ctx.stream);
}

// Gathers the same number of rows from each rank, with padding, then reorders. exchange() would need no padding, but
// the memory of its receive buffers may never be freed.
Tensor ContextParallel::all_rows(const Tensor& t, const ContextShards& shards, const ExecContext& ctx) {
  check_shards(shards);
  std::int64_t max = 0;
  for (int r = 0; r < shards.ranks(); ++r) max = std::max(max, shards.tokens(r));
  const std::int64_t heads = t.dim(1), dim = t.dim(2);
  const Tensor parts = ctx.empty({shards.ranks(), max, heads, dim}, t.dtype());
  const auto part = [&](int r) { return parts.narrow(0, r, 1).view({max, heads, dim}); };
  const Tensor own = part(comm_.rank());
  move_rows(own, t, {.count = t.dim(0)}, ctx);
  all_gather(parts, own, ctx);
  const Tensor all = ctx.empty({shards.tokens(), heads, dim}, t.dtype());
  for (int r = 0; r < shards.ranks(); ++r)
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(r)])
      move_rows(all, part(r), {.to = h.global, .first = h.first, .count = h.count}, ctx);
  return all;
}

double ContextParallel::pairs(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                              std::int64_t kv_heads) {
  return pairs_of_rank(*shards, shards->rank, pattern, kv_heads);
}

void ContextTransfers::all_reduce(const Tensor& t, const ExecContext& ctx) {
  bytes_sent_ += 2 * static_cast<std::int64_t>(t.bytes()) * (comm_.size() - 1) / comm_.size();
  comm_.all_reduce(t, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
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

std::unique_ptr<ContextParallel> make_context_parallel(const ContextRanks& ranks, ContextSchedule schedule,
                                                       const RingOptions& ring) {
  Communicator& comm = ranks.all;
  switch (schedule) {
    case ContextSchedule::automatic: return make_measured_context(comm, ring);
    case ContextSchedule::ring: return make_ring(comm, ring);
    case ContextSchedule::gather: return make_gather(comm, ring.keys, ring.messages);
    case ContextSchedule::all_to_all:
      RING_CHECK(ring.messages == ContextMessages::exact, "context exchange by all_to_all: messages are exact, not ",
                 to_string(ring.messages));
      return make_all_to_all(comm);
    case ContextSchedule::hybrid: return make_hybrid(ranks, ring);
  }
  fail("context exchange: no such schedule");
}

}  // namespace ring
