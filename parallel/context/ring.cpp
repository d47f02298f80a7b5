// The ring: in step s this rank computes with the keys of rank - s, received directly from that rank. With several
// nodes, each node makes one revolution with its own keys and one with the keys of each other node (Gu et al. 2024,
// LoongTrain).

#include <deque>

#include "parallel/context/accumulators.h"
#include "parallel/context/cache.h"
#include "parallel/context/heads.h"
#include "parallel/context/key_schedule.h"

namespace ring {
namespace {

struct Step {
  int from = 0, to = 0;   // rank that we receive from; rank that we send to
  KeyRequest keys, ours;  // keys of `from` that we need; keys that we hold and `to` needs
};

// One revolution among the ranks of a node, which pass on the keys that they hold: their own keys, or those of their
// counterparts on a different node.
struct InnerRing {
  bool own = true;          // true if the ranks pass on their own keys
  KeyRequest base;          // keys that our queries need from the keys that we hold at the start
  std::vector<Step> steps;  // steps in which any rank may need keys
  // Inter-node exchange before this revolution: the rank from which we receive the held keys, the rank that gets ours,
  // and the keys that the two nodes need.
  int from = 0, to = 0;
  KeyRequest held, ours;
};

struct RingPlan {
  std::vector<InnerRing> revolutions;  // the first one passes on our own keys
  // Calls of the backward with our own keys: `before` runs while the first keys are in flight, `after` while the last
  // gradients are returned.
  std::vector<AttentionCall> before, after;

  bool local() const {
    return revolutions.size() == 1 && revolutions[0].steps.empty() && revolutions[0].base.calls.size() == 1;
  }
  std::int64_t calls() const { return remote_calls() + calls_of(revolutions[0].base.calls); }
  std::int64_t backward_calls() const { return remote_calls() + calls_of(before) + calls_of(after); }

 private:
  std::int64_t remote_calls() const {
    std::int64_t n = 0;
    for (const InnerRing& r : revolutions) {
      if (!r.own) n += calls_of(r.base.calls);
      for (const Step& s : r.steps) n += calls_of(s.keys.calls);
    }
    return n;
  }
};

// Ranks by node and by index on the node.
struct Grid {
  const ContextShards& shards;
  const Pattern& pattern;
  std::int64_t kv_heads;
  SpanPositions positions;
  int nodes, per_node;
  ReferencedBlocks referenced{};

  int rank(int node, int local_rank) const {
    return (node + nodes) % nodes * per_node + (local_rank + per_node) % per_node;
  }
  KeyRequest needs(int queries, int keys) const {
    return needed_keys(shards, queries, keys, pattern, kv_heads, positions, referenced);
  }
  // Returns true if any rank may need the keys of the rank that is `node_distance` nodes and `distance` local ranks
  // before it.
  bool any_rank_needs(int node_distance, int distance) const {
    for (int node = 0; node < nodes; ++node)
      for (int local_rank = 0; local_rank < per_node; ++local_rank)
        if (may_need_keys(shards, rank(node, local_rank), rank(node - node_distance, local_rank - distance), pattern))
          return true;
    return false;
  }
  KeyRequest needed_by_node(int node, int keys) const {
    std::vector<int> ranks;
    for (int local_rank = 0; local_rank < per_node; ++local_rank) ranks.push_back(rank(node, local_rank));
    return needed_by_any(shards, ranks, keys, pattern, kv_heads, referenced);
  }
};

InnerRing revolution_of(const Grid& g, int node_distance) {
  const int me = g.shards.rank, node = me / g.per_node, local_rank = me % g.per_node,
            source = g.rank(node - node_distance, local_rank);
  InnerRing r{.own = node_distance == 0, .base = g.needs(me, source)};
  for (int distance = 1; distance < g.per_node; ++distance)
    if (g.any_rank_needs(node_distance, distance)) {
      const int to = g.rank(node, local_rank + distance);
      r.steps.push_back({g.rank(node, local_rank - distance), to,
                         g.needs(me, g.rank(node - node_distance, local_rank - distance)), g.needs(to, source)});
    }
  if (r.own) return r;
  r.from = source, r.to = g.rank(node + node_distance, local_rank);
  r.held = g.needed_by_node(node, source);
  r.ours = g.needed_by_node((node + node_distance) % g.nodes, me);
  return r;
}

RingPlan make_ring_plan(const Grid& g) {
  RingPlan plan;
  plan.revolutions.push_back(revolution_of(g, 0));
  plan.before = calls_with_own_keys(g.shards, g.shards.rank, g.pattern);
  if (!plan.before.empty()) {
    plan.after.push_back(std::move(plan.before.back()));
    plan.before.pop_back();
  }
  for (int node_distance = 1; node_distance < g.nodes; ++node_distance) {
    bool any = false;
    for (int distance = 0; distance < g.per_node && !any; ++distance) any = g.any_rank_needs(node_distance, distance);
    if (any) plan.revolutions.push_back(revolution_of(g, node_distance));
  }
  return plan;
}

// Messages of one step in flight.
struct PendingStep {
  Tensor in, out;  // undefined if there is no message
  Work work;

  void wait(const Stream& stream) {
    work.wait(stream);
    out = {};
  }
};

class Ring final : public KeySchedule {
 public:
  Ring(Communicator& comm, const RingOptions& options)
      : KeySchedule(comm, options.messages),
        prefetch_(static_cast<std::size_t>(options.prefetch)),
        per_node_(options.per_node > 0 ? options.per_node : comm.size()),
        message_bytes_(options.message_bytes) {
    RING_CHECK(comm.size() % per_node_ == 0, "context ring: ", per_node_, " ranks per node do not divide the ",
               comm.size(), " ranks");
  }
  std::string_view name() const override { return "ring"; }

  void attend(const Attention& args, const KeyShards& shards, const ExecContext& ctx) override {
    for_groups(args, shards, ctx, [&](const Attention& a, const RingPlan& plan) { attend_once(a, plan, ctx); });
  }
  void attend_backward(const AttentionBackward& args, const KeyShards& shards, const ExecContext& ctx) override {
    for_groups(args, shards, ctx,
               [&](const AttentionBackward& a, const RingPlan& plan) { attend_backward_once(a, plan, ctx); });
  }

 private:
  // Calls fn(the call restricted to the group, the group's ring plan) for each group of KV heads in turn.
  template <class Args, class Fn>
  void for_groups(const Args& args, const KeyShards& keys, const ExecContext& ctx, const Fn& fn) {
    const std::int64_t all = args.k.dim(1);
    const std::int64_t some = heads_at_once(*keys.shards, args.pattern, all, args.k.dim(2), message_bytes_);
    const auto call = [&](const Args& part, KvHeads heads) {
      const ReferencedBlocks blocks = keys.referenced.of(heads, part.pattern);
      if (blocks.kept) return fn(part, make_ring_plan(grid_of(*keys.shards, part, blocks)));
      fn(part, cached_plan(keys.shards, part));
    };
    if (some == all) return call(args, {0, all});
    for (std::int64_t first = 0; first < all; first += some) {
      const KvHeads heads{first, some};
      call(of_heads(args, heads, patterns_.get(keys.shards, args.pattern, all, heads), ctx), heads);
    }
  }

  void attend_once(const Attention& args, const RingPlan& plan, const ExecContext& ctx) {
    if (plan.local()) return run_call(args, plan.revolutions[0].base.calls[0], ctx);
    ForwardAccumulator accumulator(args, plan.calls(), ctx);
    NextRevolution next(*this, plan, args.k, args.v, ctx);
    KvPair held{{}, args.k, args.v};
    for (const InnerRing& r : plan.revolutions) {
      next.start();
      KeyPrefetcher keys(*this, r, held, args.k, next, ctx);
      const KvPair base = keys.base();
      if (base.k.defined()) accumulator.accumulate(r.base.calls, base.k, base.v);
      for (const Step& step : r.steps) {
        const KvPair remote = keys.next(step);
        if (remote.k.defined()) accumulator.accumulate(step.keys.calls, remote.k, remote.v);
      }
      held = next.finish();
    }
  }

  void attend_backward_once(const AttentionBackward& args, const RingPlan& plan, const ExecContext& ctx) {
    if (plan.local()) return run_call(args, plan.revolutions[0].base.calls[0], ctx);
    BackwardAccumulator accumulator(args, plan.backward_calls(), ctx);
    NextRevolution next(*this, plan, args.k, args.v, ctx);
    KvPair held{{}, args.k, args.v}, own = carried(args, ctx);
    GradientReturn pending;  // exchange that is still returning gradients of our own keys
    for (const InnerRing& r : plan.revolutions) {
      next.start();
      KvPair theirs;
      GradientReturn inner = revolution_backward(r, plan, held, r.own ? own : theirs, next, accumulator, args.k, ctx);
      held = next.finish();
      if (!r.own) {
        inner.wait_and_add(theirs, args.k, ctx);
        inner = return_gradients(r.held, r.from, theirs, r.ours, r.to, args.k, ctx);
        pending.wait_and_add(own, args.k, ctx);
      }
      pending = std::move(inner);
    }
    accumulator.accumulate(plan.after, args.k, args.v, own);
    pending.wait_and_add(own, args.k, ctx);
    if (!own.k.defined()) own = no_gradients(args.k, ctx);
    copy_rounded(args.dk, own.k, ctx);
    copy_rounded(args.dv, own.v, ctx);
  }

  // Returns the carried-in gradients of keys; undefined if there are none.
  static KvPair carried(const AttentionBackward& args, const ExecContext& ctx) {
    if (!args.carry_dk.defined()) return {};
    const KvPair own = kv_pair(ctx.empty({2, args.k.dim(0), args.k.dim(1), args.k.dim(2)}));
    move_rows(own.k, args.carry_dk, {.count = args.k.dim(0)}, ctx);
    move_rows(own.v, args.carry_dv, {.count = args.k.dim(0)}, ctx);
    return own;
  }

  // Key gradients in flight: gradients of other ranks' keys are sent to the owners, gradients of our keys are received.
  struct GradientReturn {
    const KeyRequest* ours = nullptr;
    PendingStep transfer;

    void wait_and_add(KvPair& to, const Tensor& like, const ExecContext& ctx) {
      transfer.wait(ctx.stream);
      if (!transfer.in.defined()) return;
      if (!to.k.defined()) to = no_gradients(like, ctx);
      add_gradients(*ours, transfer.in, to, ctx);
    }
  };

  // Transfer of the next revolution's keys, split into pieces that are sent with the exchanges of the current
  // revolution.
  class NextRevolution {
   public:
    NextRevolution(Ring& ring, const RingPlan& plan, const Tensor& k, const Tensor& v, const ExecContext& ctx)
        : ring_(ring), plan_(plan), k_(k), v_(v), ctx_(ctx) {}

    void start() {
      in_ = out_ = {};
      piece_ = 0, pieces_ = plan_.revolutions[at_].steps.size();
      if (++at_ == plan_.revolutions.size()) return;
      const InnerRing& r = coming();
      if (!r.ours.none()) out_ = pack(r.ours, k_, v_, ring_.key_message(k_.dtype()), ctx_);
      if (!r.held.none()) in_ = ring_.receive_message(r.held, k_, ring_.key_message(k_.dtype()), ctx_);
      if (pieces_ > 0) return;
      std::vector<Transfer> sends, receives;
      pieces_ = 1;
      add_piece(sends, receives);
      work_ = ring_.exchange(sends, receives, ctx_);
    }
    void add_piece(std::vector<Transfer>& sends, std::vector<Transfer>& receives) {
      const auto add = [&](const Tensor& t, int peer, std::vector<Transfer>& to) {
        if (!t.defined()) return;
        const auto n = t.numel(), i = static_cast<std::int64_t>(piece_), all = static_cast<std::int64_t>(pieces_);
        const std::int64_t begin = n * i / all, end = n * (i + 1) / all;
        if (end > begin) to.push_back({t.narrow(0, begin, end - begin), peer});
      };
      if (at_ < plan_.revolutions.size()) {
        add(out_, coming().to, sends);
        add(in_, coming().from, receives);
      }
      ++piece_;
    }
    // Waits and returns the keys, in rows of their owner; undefined if no keys are needed or this was the last
    // revolution.
    KvPair finish() {
      work_.wait(ctx_.stream);
      out_ = {};
      return in_.defined() ? unpack(coming().held, in_, k_, ctx_) : KvPair{};
    }

   private:
    const InnerRing& coming() const { return plan_.revolutions[at_]; }

    Ring& ring_;
    const RingPlan& plan_;
    const Tensor &k_, &v_;
    const ExecContext& ctx_;
    Tensor in_, out_;
    Work work_;
    std::size_t at_ = 0, piece_ = 0, pieces_ = 0;
  };

  // Prefetches the keys and values of a revolution's steps, in order.
  class KeyPrefetcher {
   public:
    // like: a tensor with the heads, head dimension and type of the keys.
    KeyPrefetcher(Ring& ring, const InnerRing& r, const KvPair& held, const Tensor& like, NextRevolution& next,
                  const ExecContext& ctx)
        : ring_(ring), revolution_(r), held_(held), like_(like), next_(next), ctx_(ctx) {
      start_up_to_limit();
    }

    // Returns the keys and values for the revolution's `base` request; undefined if none are needed.
    KvPair base() {
      const KeyRequest& need = revolution_.base;
      if (revolution_.own) return held_;
      return need.none() ? KvPair{} : unpack(need, packed(need), like_, ctx_);
    }
    KvPair next(const Step& step) {
      if (pending_.empty()) start_one();
      ++done_;
      start_up_to_limit();
      PendingStep transfer = std::move(pending_.front());
      pending_.pop_front();
      transfer.wait(ctx_.stream);
      return transfer.in.defined() ? unpack(step.keys, transfer.in, like_, ctx_) : KvPair{};
    }

   private:
    // Starts transfers up to the prefetch limit.
    void start_up_to_limit() {
      while (started_ < revolution_.steps.size() && started_ < done_ + ring_.prefetch_) start_one();
    }
    void start_one() {
      const Step& step = revolution_.steps[started_++];
      std::vector<Transfer> sends, receives;
      PendingStep transfer;
      if (!step.ours.none()) sends.push_back({transfer.out = packed(step.ours), step.to});
      if (!step.keys.none()) {
        transfer.in = ring_.receive_message(step.keys, like_, ring_.key_message(like_.dtype()), ctx_);
        receives.push_back({transfer.in, step.from});
      }
      next_.add_piece(sends, receives);
      transfer.work = ring_.exchange(sends, receives, ctx_);
      pending_.push_back(std::move(transfer));
    }
    // Packs a message. Reuses the previous message if the rows are the same, as in dense attention.
    const Tensor& packed(const KeyRequest& need) {
      if (!message_.defined() || need.referenced || need.copies != packed_->copies)
        message_ = pack(need, held_.k, held_.v, ring_.key_message(like_.dtype()), ctx_);
      packed_ = &need;
      return message_;
    }

    Ring& ring_;
    const InnerRing& revolution_;
    const KvPair& held_;
    const Tensor& like_;
    NextRevolution& next_;
    const ExecContext& ctx_;
    std::size_t started_ = 0, done_ = 0;
    std::deque<PendingStep> pending_;
    Tensor message_;
    const KeyRequest* packed_ = nullptr;
  };

  // Runs the backward of one revolution. Adds the gradients of the keys that we hold to `gradients`, except those that
  // the last exchange brings; returns this exchange, which is still in flight.
  GradientReturn revolution_backward(const InnerRing& r, const RingPlan& plan, const KvPair& held, KvPair& gradients,
                                     NextRevolution& next, BackwardAccumulator& accumulator, const Tensor& like,
                                     const ExecContext& ctx) {
    KeyPrefetcher keys(*this, r, held, like, next, ctx);
    const KvPair base = keys.base();
    KvPair seen;
    if (r.own)
      accumulator.accumulate(plan.before, base.k, base.v, gradients);
    else if (base.k.defined())
      accumulator.accumulate(r.base.calls, base.k, base.v, seen);
    if (!r.own && held.k.defined()) gradients = no_gradients(held.k, ctx);
    if (seen.k.defined()) add_gradients(r.base, pack_gradients(r.base, seen, DType::f32, ctx), gradients, ctx);
    GradientReturn pending;
    for (const Step& step : r.steps) {
      const KvPair remote = keys.next(step);
      KvPair theirs;
      if (remote.k.defined()) accumulator.accumulate(step.keys.calls, remote.k, remote.v, theirs);
      GradientReturn next_return = return_gradients(step.keys, step.from, theirs, step.ours, step.to, like, ctx);
      pending.wait_and_add(gradients, like, ctx);
      pending = std::move(next_return);
    }
    return pending;
  }

  GradientReturn return_gradients(const KeyRequest& keys, int from, const KvPair& gradients, const KeyRequest& ours,
                                  int to, const Tensor& like, const ExecContext& ctx) {
    std::vector<Transfer> sends, receives;
    GradientReturn pending{&ours, {}};
    if (gradients.k.defined() && !keys.none())
      sends.push_back({pending.transfer.out = pack_gradients(keys, gradients, gradient_message(), ctx), from});
    if (!ours.none()) {
      pending.transfer.in = receive_message(ours, like, gradient_message(), ctx);
      receives.push_back({pending.transfer.in, to});
    }
    pending.transfer.work = exchange(sends, receives, ctx);
    return pending;
  }

  template <class Args>
  Grid grid_of(const ContextShards& shards, const Args& args, const ReferencedBlocks& referenced) const {
    const auto positions = args.dropout.rate > 0 ? SpanPositions::in_row : SpanPositions::in_order;
    return {shards, args.pattern, args.k.dim(1), positions, shards.ranks() / per_node_, per_node_, referenced};
  }

  template <class Args>
  const RingPlan& cached_plan(const std::shared_ptr<const ContextShards>& shards, const Args& args) {
    check_shards(*shards);
    return (args.dropout.rate > 0 ? dropout_plans_ : plans_).get(shards, args.pattern, args.k.dim(1), [&] {
      return make_ring_plan(grid_of(*shards, args, {}));
    });
  }

  std::size_t prefetch_;
  int per_node_;
  std::int64_t message_bytes_;
  HeadPatterns patterns_;
  PlanCache<RingPlan> plans_, dropout_plans_;
};

}  // namespace

std::unique_ptr<KeySchedule> make_ring_schedule(Communicator& comm, const RingOptions& options) {
  return std::make_unique<Ring>(comm, options);
}

}  // namespace ring
