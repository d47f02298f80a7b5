#include "parallel/context/pools/pool_plan.h"

#include <algorithm>

namespace ring {
namespace {

// Adjacent rows of one rank.
struct Piece {
  int rank;
  LocalRows rows;
};

// Returns the rows of all ranks, in the micro-batch's order, with adjacent rows merged.
std::vector<Piece> pieces_of(const ContextShards& shards) {
  std::vector<Piece> sorted, joined;
  for (int r = 0; r < shards.ranks(); ++r)
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(r)]) sorted.push_back({r, h});
  std::ranges::sort(sorted, {}, [](const Piece& p) { return p.rows.global; });
  for (const Piece& p : sorted) {
    const auto follows = [&](const Piece& last) {
      return last.rank == p.rank && last.rows.first + last.rows.count == p.rows.first &&
             last.rows.global + last.rows.count == p.rows.global;
    };
    if (!joined.empty() && follows(joined.back()))
      joined.back().rows.count += p.rows.count;
    else
      joined.push_back(p);
  }
  return joined;
}

PoolPlan::Message& with(std::vector<PoolPlan::Message>& messages, int peer) {
  const auto found = std::ranges::find(messages, peer, &PoolPlan::Message::peer);
  return found == messages.end() ? messages.emplace_back(PoolPlan::Message{.peer = peer, .moves = {}}) : *found;
}

// Builds the plan from all ranks' rows, added in the micro-batch's order.
class Planner {
 public:
  Planner(const ContextShards& shards, std::int32_t size) : me_(shards.rank) {
    plan_.size = size;
    plan_.pools = {me_, pool_spans(shards.documents, size), {}};
    plan_.pools.rows_by_rank.resize(shards.rows_by_rank.size());
  }

  // Adds rows [row, row + count) of a rank. They hold consecutive tokens of a document, the first of them `token`.
  // `pool` is the document's first pool.
  void add(int rank, std::int32_t row, std::int32_t token, std::int32_t count, std::int32_t pool) {
    const std::int32_t size = plan_.size;
    for (std::int32_t n = 0; count > 0; row += n, token += n, count -= n) {
      const std::int32_t place = token % size, at = pool + token / size;
      if (place == 0 && count >= size) {
        n = count / size * size;
        add_whole(rank, row, n, at);
      } else {
        n = std::min(count, size - place);
        add_part(rank, row, place, n, at);
      }
    }
  }
  PoolPlan plan() && { return std::move(plan_); }

 private:
  // Assigns pools to a rank. Returns the row of the first of these pools among the rank's pools.
  std::int32_t hold(int rank, std::int32_t pool, std::int32_t count) {
    std::vector<LocalRows>& held = plan_.pools.rows_by_rank[static_cast<std::size_t>(rank)];
    const std::int32_t first = held.empty() ? 0 : held.back().first + held.back().count;
    if (!held.empty() && held.back().global + held.back().count == pool)
      held.back().count += count;
    else
      held.push_back({first, pool, count});
    return first;
  }
  void add_whole(int rank, std::int32_t row, std::int32_t count, std::int32_t pool) {
    const std::int32_t out = hold(rank, pool, count / plan_.size);
    if (rank == me_) plan_.whole.push_back({.first = row, .count = count, .out = out});
  }
  // Adds tokens of one pool; `place` is the first token's index in the pool.
  void add_part(int rank, std::int32_t row, std::int32_t place, std::int32_t count, std::int32_t pool) {
    if (place == 0) begin_part(rank, pool);
    const std::int64_t to = plan_.part_rows - plan_.size + place;
    if (rank != maker_) plan_.any_travels = true;
    if (rank == me_ && maker_ == me_)
      plan_.own.push_back({.to = to, .first = row, .count = count});
    else if (rank == me_)
      add(with(plan_.sends, maker_), {.first = row, .count = count}, &RowMove::to);
    else if (maker_ == me_)
      add(with(plan_.receives, rank), {.to = to, .count = count}, &RowMove::first);
  }
  void begin_part(int rank, std::int32_t pool) {
    maker_ = rank;
    const std::int32_t out = hold(rank, pool, 1);
    if (rank != me_) return;
    plan_.parts.push_back({.first = static_cast<std::int32_t>(plan_.part_rows), .count = plan_.size, .out = out});
    plan_.part_rows += plan_.size;
  }
  // Appends rows to a message.
  static void add(PoolPlan::Message& message, RowMove move, std::int64_t RowMove::*in_message) {
    move.*in_message = message.count;
    message.moves.push_back(move);
    message.count += move.count;
  }

  int me_, maker_ = 0;  // maker_: the rank that makes the pool being added
  PoolPlan plan_;
};

}  // namespace

PoolPlan pool_plan(const ContextShards& shards, std::int32_t size) {
  Planner planner(shards, size);
  const std::vector<Piece> pieces = pieces_of(shards);
  std::int32_t pool = 0;
  for (const Span& d : shards.documents) {
    const std::int32_t pools = count_pools(d, size), end = d.first + pools * size;
    auto p = std::ranges::upper_bound(pieces, d.first, {}, [](const Piece& x) { return x.rows.global + x.rows.count; });
    for (; p != pieces.end() && p->rows.global < end; ++p) {
      const std::int32_t from = std::max(d.first, p->rows.global), to = std::min(end, p->rows.global + p->rows.count);
      planner.add(p->rank, p->rows.first + from - p->rows.global, from - d.first, to - from, pool);
    }
    pool += pools;
  }
  return std::move(planner).plan();
}

}  // namespace ring
