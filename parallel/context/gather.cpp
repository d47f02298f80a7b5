// Sends all keys, or only the referenced ones, to every rank at once.

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"
#include "parallel/context/accumulators.h"
#include "parallel/context/cache.h"
#include "parallel/context/key_schedule.h"

namespace ring {
namespace {

struct GatherPlan {
  std::vector<AttentionCall> calls;
  std::int64_t rows = 0, max = 0;  // rows of the micro-batch; largest number of rows that a rank holds
  std::vector<KeyRequest> held;    // all rows of each rank, in tensors with the rows of the micro-batch
};

KeyRequest all_rows_of(const ContextShards& shards, int rank) {
  KeyRequest all{.rows = shards.tokens(rank) > 0 ? shards.tokens() : 0, .whole = false};
  for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(rank)])
    all.copies.push_back({.row = h.first, .at = h.global, .count = h.count});
  return all;
}

// Keys to exchange with each rank if only referenced keys are sent: this rank needs `theirs`, the other rank needs
// `ours`. Row numbers are the owner's.
struct Referenced {
  std::vector<KeyRequest> theirs, ours;
  bool known() const { return !ours.empty(); }
};

class Gather final : public KeySchedule {
 public:
  using KeySchedule::KeySchedule;
  std::string_view name() const override { return "gather"; }

  void attend(const Attention& args, const KeyShards& keys, const ExecContext& ctx) override {
    const ContextShards& shards = *keys.shards;
    const GatherPlan& plan = plan_for(keys.shards, args.pattern);
    const KvPair all = gather(shards, plan, referenced(args, keys), args.k, args.v, ctx);
    ForwardAccumulator accumulator(args, calls_of(plan.calls), ctx);
    accumulator.accumulate(plan.calls, all.k, all.v);
  }

  void attend_backward(const AttentionBackward& args, const KeyShards& keys, const ExecContext& ctx) override {
    const ContextShards& shards = *keys.shards;
    const GatherPlan& plan = plan_for(keys.shards, args.pattern);
    const Referenced some = referenced(args, keys);
    KvPair all = gather(shards, plan, some, args.k, args.v, ctx);
    BackwardAccumulator accumulator(args, calls_of(plan.calls), ctx);
    KvPair gradients;
    accumulator.accumulate(plan.calls, all.k, all.v, gradients);
    if (!gradients.k.defined()) gradients = no_gradients(all.k, ctx);
    all = {};
    const KvPair own = some.known()                       ? bring_home(shards, some, gradients, ctx)
                       : gradient_message() == DType::f32 ? scatter(shards, plan, gradients, ctx)
                                                          : send_home(shards, plan, gradients, ctx);
    store_sum(args.dk, own.k, args.carry_dk, ctx);
    store_sum(args.dv, own.v, args.carry_dv, ctx);
  }

 private:
  const GatherPlan& plan_for(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern) {
    check_shards(*shards);
    return plans_.get(shards, pattern, 0, [&] {
      GatherPlan plan{calls_with_all_keys(*shards, shards->rank, pattern), shards->tokens(), 0, {}};
      for (int r = 0; r < shards->ranks(); ++r) {
        plan.max = std::max(plan.max, shards->tokens(r));
        plan.held.push_back(all_rows_of(*shards, r));
      }
      return plan;
    });
  }

  template <class Args>
  Referenced referenced(const Args& args, const KeyShards& keys) {
    const ContextShards& shards = *keys.shards;
    const std::int64_t heads = args.k.dim(1);
    const ReferencedBlocks blocks = keys.referenced.of({0, heads}, args.pattern);
    Referenced some;
    for (int r = 0; blocks.kept && r < comm_.size(); ++r) {
      const auto needs = [&](int queries, int owner) {
        return r == comm_.rank() ? KeyRequest{} : needed_by_any(shards, {queries}, owner, args.pattern, heads, blocks);
      };
      some.theirs.push_back(needs(comm_.rank(), r));
      some.ours.push_back(needs(r, comm_.rank()));
    }
    return some;
  }

  // Returns the keys and values of a rank, as a view of `parts` [ranks,2,max,H,D].
  static KvPair part(const Tensor& parts, int rank) {
    return kv_pair(parts.narrow(0, rank, 1).view({2, parts.dim(2), parts.dim(3), parts.dim(4)}));
  }
  static void move(const KvPair& to, const KvPair& from, const RowMove& rows, const ExecContext& ctx) {
    move_rows(to.k, from.k, rows, ctx);
    move_rows(to.v, from.v, rows, ctx);
  }
  // Copies a rank's rows to their places among the rows of the micro-batch. take() does the reverse.
  static void put(const KvPair& all, const KvPair& part, const ContextShards& shards, int rank,
                  const ExecContext& ctx) {
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(rank)])
      move(all, part, {.to = h.global, .first = h.first, .count = h.count}, ctx);
  }
  static void take(const KvPair& part, const KvPair& all, const ContextShards& shards, int rank,
                   const ExecContext& ctx) {
    for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(rank)])
      move(part, all, {.to = h.first, .first = h.global, .count = h.count}, ctx);
  }

  // Returns all keys and values, in the micro-batch's order.
  KvPair gather(const ContextShards& shards, const GatherPlan& plan, const Referenced& some, const Tensor& k,
                const Tensor& v, const ExecContext& ctx) {
    if (some.known()) return bring(shards, some, k, v, ctx);
    const std::int64_t heads = k.dim(1), dim = k.dim(2);
    const DType type = key_message(k.dtype());
    const std::int64_t size = message_numel(plan.max * heads, dim, type);
    const Tensor parts = ctx.empty({comm_.size(), size}, type);
    const auto message = [&](int r) { return parts.narrow(0, r, 1).view({size}); };
    const KeyRequest own{.copies = {{.count = static_cast<std::int32_t>(k.dim(0))}}, .calls = {}};
    pack(own, k, v, message(comm_.rank()), ctx);
    all_gather(parts, message(comm_.rank()), ctx);
    const KvPair all = kv_pair(ctx.empty({2, plan.rows, heads, dim}, k.dtype()));
    for (int r = 0; r < comm_.size(); ++r)
      if (r == comm_.rank())
        put(all, {{}, k, v}, shards, r, ctx);
      else
        unpack(plan.held[static_cast<std::size_t>(r)], message(r), all, ctx);
    return all;
  }

  KvPair scatter(const ContextShards& shards, const GatherPlan& plan, const KvPair& gradients, const ExecContext& ctx) {
    const std::int64_t heads = gradients.k.dim(1), dim = gradients.k.dim(2);
    // The tensor starts as zeros, since the reduction also reads the padding.
    const Tensor parts = ctx.zeros({comm_.size(), 2, plan.max, heads, dim});
    for (int r = 0; r < comm_.size(); ++r) take(part(parts, r), gradients, shards, r, ctx);
    const Tensor mine = ctx.empty({2, plan.max, heads, dim});
    bytes_sent_ += static_cast<std::int64_t>(mine.bytes()) * (comm_.size() - 1);
    comm_.reduce_scatter(mine, parts, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
    return kv_pair(mine);
  }

  // For each rank r with a non-empty out[r], sends make(r, out[r]) to r. Returns the received messages by rank; the
  // tensor of a rank from which `in` needs nothing is undefined. type: dtype of all messages.
  template <class Make>
  std::vector<Tensor> swap(const std::vector<KeyRequest>& out, const std::vector<KeyRequest>& in, const Tensor& like,
                           DType type, const ExecContext& ctx, const Make& make) {
    std::vector<Tensor> received(in.size());
    std::vector<Transfer> sends, receives;
    for (int r = 0; r < comm_.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (!out[i].none()) sends.push_back({make(r, out[i]), r});
      if (in[i].none()) continue;
      received[i] = receive_message(in[i], like, type, ctx);
      receives.push_back({received[i], r});
    }
    exchange(sends, receives, ctx).wait(ctx.stream);
    return received;
  }

  // Like gather(), but gets only the referenced rows of other ranks; the rest are zeros.
  KvPair bring(const ContextShards& shards, const Referenced& some, const Tensor& k, const Tensor& v,
               const ExecContext& ctx) {
    const DType type = key_message(k.dtype());
    const auto ours = [&](int, const KeyRequest& need) { return pack(need, k, v, type, ctx); };
    std::vector<Tensor> theirs = swap(some.ours, some.theirs, k, type, ctx, ours);
    const KvPair all = kv_pair(ctx.zeros({2, shards.tokens(), k.dim(1), k.dim(2)}, k.dtype()));
    put(all, {{}, k, v}, shards, comm_.rank(), ctx);
    for (int r = 0; r < comm_.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      const Tensor message = std::exchange(theirs[i], {});
      if (message.defined()) put(all, unpack(some.theirs[i], message, k, ctx), shards, r, ctx);
    }
    return all;
  }

  // Like scatter(), but sums in rank order.
  KvPair bring_home(const ContextShards& shards, const Referenced& some, const KvPair& gradients,
                    const ExecContext& ctx) {
    const auto theirs = [&](int r, const KeyRequest& need) {
      return pack_gradients(need, rows_of(r, shards, gradients, ctx), gradient_message(), ctx);
    };
    return sum_in_order(swap(some.theirs, some.ours, gradients.k, gradient_message(), ctx, theirs), some.ours, shards,
                        gradients, ctx);
  }

  // Like scatter(), but sends rounded gradients and sums in rank order.
  KvPair send_home(const ContextShards& shards, const GatherPlan& plan, const KvPair& gradients,
                   const ExecContext& ctx) {
    const auto me = static_cast<std::size_t>(comm_.rank());
    std::vector<KeyRequest> theirs = plan.held, ours(plan.held.size(), plan.held[me]);
    theirs[me] = ours[me] = {};
    const auto make = [&](int, const KeyRequest& need) {
      return pack_gradients(need, gradients, gradient_message(), ctx);
    };
    return sum_in_order(swap(theirs, ours, gradients.k, gradient_message(), ctx, make), ours, shards, gradients, ctx);
  }

  // Returns a rank's rows of the gradients.
  static KvPair rows_of(int rank, const ContextShards& shards, const KvPair& gradients, const ExecContext& ctx) {
    const KvPair rows = kv_pair(ctx.empty({2, shards.tokens(rank), gradients.k.dim(1), gradients.k.dim(2)}));
    take(rows, gradients, shards, rank, ctx);
    return rows;
  }
  // Adds this rank's rows of the gradients and the messages of other ranks, with the rows of these requests.
  KvPair sum_in_order(std::vector<Tensor> messages, const std::vector<KeyRequest>& requests,
                      const ContextShards& shards, const KvPair& gradients, const ExecContext& ctx) {
    const KvPair own = rows_of(comm_.rank(), shards, gradients, ctx), sum = kv_pair(ctx.zeros(own.both.shape()));
    for (int r = 0; r < comm_.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      const Tensor message = std::exchange(messages[i], {});
      if (r == comm_.rank()) add(sum.both, own.both, ctx);
      if (message.defined()) add_gradients(requests[i], message, sum, ctx);
    }
    return sum;
  }

  // Stores this rank's rows, the first ones of `rows`, plus `carry` if it is defined.
  static void store_sum(const Tensor& dst, const Tensor& rows, const Tensor& carry, const ExecContext& ctx) {
    const Tensor own = rows.narrow(0, 0, dst.dim(0));
    if (carry.defined() && carry.numel() > 0)
      axpby_kernel({.x = carry, .y = own, .out = own, .alpha = 1, .beta = 1}, ctx);
    copy_rounded(dst, own, ctx);
  }

  PlanCache<GatherPlan> plans_;
};

}  // namespace

std::unique_ptr<KeySchedule> make_gather_schedule(Communicator& comm, ContextMessages messages) {
  return std::make_unique<Gather>(comm, messages);
}

}  // namespace ring
