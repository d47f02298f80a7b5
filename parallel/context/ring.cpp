// The ring: in step s this rank computes with the keys of the rank s before it, which come straight from there.

#include <deque>

#include "parallel/context/cache.h"
#include "parallel/context/exchange.h"
#include "parallel/context/sums.h"

namespace ring {
namespace {

struct Step {
  int from = 0, to = 0;   // whose keys come, and who gets ours
  NeededKeys keys, ours;  // what we need of `from`; what `to` needs of us
};

struct RingPlan {
  std::vector<Round> own;
  std::vector<Step> steps;  // those in which any rank may need anything

  std::int64_t calls() const {
    std::int64_t n = calls_of(own);
    for (const Step& s : steps) n += calls_of(s.keys.rounds);
    return n;
  }
};

RingPlan plan_of(const ContextShards& s, const Pattern& pattern, std::int64_t kv_heads) {
  const int ranks = s.ranks();
  RingPlan plan{needed_keys(s, s.rank, s.rank, pattern, kv_heads).rounds, {}};
  for (int distance = 1; distance < ranks; ++distance) {
    bool any = false;
    for (int r = 0; r < ranks && !any; ++r) any = may_need(s, r, (r - distance + ranks) % ranks, pattern);
    if (!any) continue;
    const int from = (s.rank - distance + ranks) % ranks, to = (s.rank + distance) % ranks;
    plan.steps.push_back(
        {from, to, needed_keys(s, s.rank, from, pattern, kv_heads), needed_keys(s, to, s.rank, pattern, kv_heads)});
  }
  return plan;
}

// Messages of one step, under way.
struct Flight {
  Tensor in;
  Work work;
};

class Ring final : public ContextParallel {
 public:
  Ring(Communicator& comm, std::int64_t prefetch) : ContextParallel(comm), prefetch_(prefetch) {}
  std::string_view schedule() const override { return "ring"; }

  void forward(const Attention& args, const std::shared_ptr<const ContextShards>& shards, const Context& ctx) override {
    const RingPlan& plan = plan_for(shards, args.pattern, args.k.dim(1));
    if (plan.steps.empty() && plan.own.size() == 1) return run_round(args, plan.own[0], ctx);
    Keys keys(*this, plan, args.k, args.v, ctx);
    ForwardSum sum(args, plan.calls(), ctx);
    keys.start(0);
    sum.add(plan.own, args.k, args.v);
    for (const Step& step : plan.steps) {
      const KeyPair remote = keys.next(step);
      if (remote.k.defined()) sum.add(step.keys.rounds, remote.k, remote.v);
    }
  }

  void backward(const AttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                const Context& ctx) override {
    const RingPlan& plan = plan_for(shards, args.pattern, args.k.dim(1));
    if (plan.steps.empty() && plan.own.size() == 1) return run_round(args, plan.own[0], ctx);
    Keys keys(*this, plan, args.k, args.v, ctx);
    BackwardSum sum(args, plan.calls(), ctx);
    keys.start(0);
    const KeyPair own = sum.add(plan.own, args.k, args.v);
    Flight home;
    const Step* before = nullptr;  // whose gradients are on their way home
    const auto arrive = [&] {
      if (!before) return;
      home.work.wait(ctx.stream);
      if (home.in.defined()) add_home(before->ours, home.in, own, ctx);
    };
    for (const Step& step : plan.steps) {
      const KeyPair remote = keys.next(step);
      KeyPair gradients;
      if (remote.k.defined()) gradients = sum.add(step.keys.rounds, remote.k, remote.v);
      Flight next = send_home(step, gradients, own, ctx);
      arrive();
      home = std::move(next);
      before = &step;
    }
    arrive();
    store(args.dk, own.k, ctx);
    store(args.dv, own.v, ctx);
  }

 private:
  // Keys and values of the steps, in order, some ahead of their use.
  class Keys {
   public:
    Keys(Ring& ring, const RingPlan& plan, const Tensor& k, const Tensor& v, const Context& ctx)
        : ring_(ring), plan_(plan), k_(k), v_(v), ctx_(ctx) {}

    // Starts the transfers of all steps up to the `prefetch` ones after `done` of them.
    void start(std::size_t done) {
      while (started_ < plan_.steps.size() && started_ < done + static_cast<std::size_t>(ring_.prefetch_))
        begin(plan_.steps[started_++]);
    }
    // Undefined: none are needed.
    KeyPair next(const Step& step) {
      if (flights_.empty()) begin(plan_.steps[started_++]);
      ++done_;
      start(done_);
      Flight flight = std::move(flights_.front());
      flights_.pop_front();
      flight.work.wait(ctx_.stream);
      return flight.in.defined() ? unpack(step.keys, flight.in, k_.dim(1), ctx_) : KeyPair{};
    }

   private:
    void begin(const Step& step) {
      std::vector<Transfer> sends, receives;
      Flight flight;
      if (!step.ours.copies.empty()) sends.push_back({packed(step.ours), step.to});
      if (!step.keys.copies.empty()) {
        flight.in = ctx_.empty({2 * step.keys.row_heads(k_.dim(1)) * k_.dim(2)}, k_.dtype());
        receives.push_back({flight.in, step.from});
      }
      flight.work = ring_.exchange(sends, receives, ctx_);
      flights_.push_back(std::move(flight));
    }
    // Dense attention sends the same rows to several ranks.
    const Tensor& packed(const NeededKeys& need) {
      if (!message_.defined() || need.copies != packed_->copies) message_ = pack(need, k_, v_, ctx_);
      packed_ = &need;
      return message_;
    }

    Ring& ring_;
    const RingPlan& plan_;
    const Tensor &k_, &v_;
    const Context& ctx_;
    std::size_t started_ = 0, done_ = 0;
    std::deque<Flight> flights_;
    Tensor message_;
    const NeededKeys* packed_ = nullptr;
  };

  const RingPlan& plan_for(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
                           std::int64_t kv_heads) {
    check_shards(*shards);
    return plans_.get(shards, pattern, kv_heads, [&] { return plan_of(*shards, pattern, kv_heads); });
  }

  Flight send_home(const Step& step, const KeyPair& gradients, const KeyPair& own, const Context& ctx) {
    std::vector<Transfer> sends, receives;
    Flight flight;
    if (gradients.k.defined()) sends.push_back({pack_home(step.keys, gradients, ctx), step.from});
    if (!step.ours.copies.empty()) {
      flight.in = ctx.empty({2 * step.ours.row_heads(own.k.dim(1)) * own.k.dim(2)});
      receives.push_back({flight.in, step.to});
    }
    flight.work = exchange(sends, receives, ctx);
    return flight;
  }

  std::int64_t prefetch_;
  PlanCache<RingPlan> plans_;
};

}  // namespace

std::unique_ptr<ContextParallel> make_ring(Communicator& comm, std::int64_t prefetch) {
  return std::make_unique<Ring>(comm, prefetch);
}

}  // namespace ring
