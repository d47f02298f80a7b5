#pragma once
// Attention with rounded messages between ranks of any device, for tests.

#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include "core/philox.h"
#include "parallel/context/exchange.h"
#include "tests/parallel/context_problem.h"

namespace ring::test {

using MessageFloats = std::vector<float>;

struct MessageHeads {
  std::int64_t query = 8, key = 4, dim = 8;
  float scale = 0.4f;
};

// Operands, by rows of the micro-batch.
struct MessageOperands {
  MessageFloats q, k, v, dout;
};

inline MessageOperands random_message_operands(std::int64_t tokens, const MessageHeads& h) {
  const auto floats = [&](std::uint32_t which, std::int64_t heads) {
    MessageFloats all(static_cast<std::size_t>(tokens * heads * h.dim));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = random_normal({17, which, 0}, i);
    return all;
  };
  return {floats(0, h.query), floats(1, h.key), floats(2, h.key), floats(3, h.query)};
}

struct MessageResults {
  MessageFloats out, dq, dk, dv;
  std::int64_t sent = 0;  // bytes that all ranks sent in the forward and the backward
};

// Calls fn(row of the rank, row of the micro-batch) for the rows that a rank holds.
template <class Fn>
void for_held_rows(const ContextShards& s, int rank, const Fn& fn) {
  for (const LocalRows& h : s.rows_by_rank[static_cast<std::size_t>(rank)])
    for (std::int32_t i = 0; i < h.count; ++i) fn(h.first + i, h.global + i);
}

using MakeMessages = std::function<std::unique_ptr<ContextParallel>(Communicator&, ContextMessages)>;

// A schedule and the messages that it sends.
struct MessageWay {
  MakeMessages make;
  ContextMessages messages;
};

// Runs one rank's part of attention, forward and backward, in f32. Copies its rows to `all`.
inline void run_way(const MessageWay& way, const ContextCase& c, const MessageHeads& h, const MessageOperands& of,
                    const std::shared_ptr<const ContextShards>& shards, Communicator& comm, const ExecContext& ctx,
                    MessageResults& all, std::mutex& mutex) {
  const auto take = [&](const MessageFloats& from, std::int64_t heads) {
    const std::int64_t width = heads * h.dim;
    MessageFloats held(static_cast<std::size_t>(shards->tokens(comm.rank()) * width));
    for_held_rows(*shards, comm.rank(), [&](std::int64_t at, std::int64_t row) {
      std::copy_n(from.data() + row * width, width, held.data() + at * width);
    });
    return from_host(held, ctx.stream).view({-1, heads, h.dim});
  };
  Attention a;
  a.q = take(of.q, h.query), a.k = take(of.k, h.key), a.v = take(of.v, h.key), a.out = ctx.zeros(a.q.shape());
  a.lse = ctx.zeros({h.query, a.q.dim(0)});
  a.scale = h.scale, a.pattern = c.pattern;
  const auto exchange = way.make(comm, way.messages);
  AttentionBackward b{.q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse, .dout = take(of.dout, h.query)};
  b.selection = exchange->forward({a}, shards, ctx, {});
  b.dq = ctx.zeros(a.q.shape()), b.dk = ctx.zeros(a.k.shape()), b.dv = ctx.zeros(a.v.shape());
  b.scale = a.scale, b.pattern = a.pattern;
  exchange->backward({b}, shards, ctx);
  const auto put = [&](MessageFloats& to, const Tensor& t) {
    const std::int64_t width = t.dim(1) * t.dim(2);
    const MessageFloats held = to_host<float>(t.view({t.numel()}), ctx.stream);
    const std::lock_guard lock(mutex);
    to.resize(static_cast<std::size_t>(c.tokens() * width));
    for_held_rows(*shards, comm.rank(), [&](std::int64_t at, std::int64_t row) {
      std::copy_n(held.data() + at * width, width, to.data() + row * width);
    });
  };
  put(all.out, a.out), put(all.dq, b.dq), put(all.dk, b.dk), put(all.dv, b.dv);
  comm.barrier().synchronize();
  const std::lock_guard lock(mutex);
  all.sent += exchange->bytes_sent();
}

inline const std::map<std::string, MakeMessages>& rounding_schedules() {
  static const std::map<std::string, MakeMessages> all = {
      {"ring", [](Communicator& c, ContextMessages m) { return make_ring(c, {.messages = m}); }},
      {"ring_by_node",
       [](Communicator& c, ContextMessages m) { return make_ring(c, {.per_node = c.size() / 2, .messages = m}); }},
      {"ring_by_heads",
       [](Communicator& c, ContextMessages m) { return make_ring(c, {.message_bytes = 1, .messages = m}); }},
      {"gather", [](Communicator& c, ContextMessages m) { return make_gather(c, ContextKeys::automatic, m); }}};
  return all;
}

inline MessageWay way_of(const char* schedule, ContextMessages messages) {
  return {rounding_schedules().at(schedule), messages};
}

inline double relative_distance(const MessageFloats& a, const MessageFloats& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace ring::test
