#include "trainer/benchmark_context.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "comm/host.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"
#include "trainer/benchmark_attention.h"

namespace ring {
namespace {

// Passes messages on, or only notes them, so that the computation can be timed without its transfers and these without
// it. What would be received stays as it is.
class TracedCommunicator final : public Communicator {
 public:
  explicit TracedCommunicator(Communicator& inner) : Communicator(inner.rank(), inner.size()), inner_(inner) {}
  std::string_view backend() const override { return inner_.backend(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }

  bool silent = false, tracing = false;

  // The noted messages again, one after the other.
  void replay(const Stream& stream) {
    for (const auto& [sends, receives] : trace_) inner_.exchange(sends, receives, stream.record()).wait(stream);
  }
  void forget() { trace_.clear(); }

 private:
  Work do_all_reduce(Operation, const Tensor& t, Reduce op, const Event& after) override {
    return silent ? Work(after, {t}) : inner_.all_reduce(t, op, after);
  }
  Work do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event& after) override {
    return silent ? Work(after, {out, in}) : inner_.all_gather(out, in, after);
  }
  Work do_reduce_scatter(Operation, const Tensor& out, const Tensor& in, Reduce op, const Event& after) override {
    return silent ? Work(after, {out, in}) : inner_.reduce_scatter(out, in, op, after);
  }
  Work do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event& after) override {
    return silent ? Work(after, {out, in}) : inner_.all_to_all(out, in, after);
  }
  Work do_broadcast(Operation, const Tensor& t, int root, const Event& after) override {
    return inner_.broadcast(t, root, after);
  }
  Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>& pieces, Reduce op, const Event& after) override {
    return inner_.reduce_pieces(pieces, op, after);
  }
  Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>& pieces, const Event& after) override {
    return inner_.broadcast_pieces(pieces, after);
  }
  Work do_exchange(Operation, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                   const Event& after) override {
    if (tracing) trace_.emplace_back(sends, receives);
    if (!silent) return inner_.exchange(sends, receives, after);
    std::vector<Tensor> held;
    for (const auto* list : {&sends, &receives})
      for (const Transfer& t : *list) held.push_back(t.tensor);
    return {after, std::move(held)};
  }
  Work do_barrier(Operation, const Event& after) override { return inner_.barrier(after); }

  Communicator& inner_;
  std::vector<std::pair<std::vector<Transfer>, std::vector<Transfer>>> trace_;
};

class Bench {
 public:
  Bench(const ContextGrid& g, Mesh& mesh, const Context& ctx)
      : grid_(g), mesh_(mesh), cp_(mesh.axis("cp")), ctx_(ctx), traced_(cp_) {}

  std::vector<ContextTiming> run(std::int64_t length) {
    ContextTiming base;
    base.length = length;
    alone(base);
    const auto shards = std::make_shared<const ContextShards>(shards_of(length));
    std::vector<ContextTiming> out;
    for (const ContextSchedule schedule : grid_.schedules)
      if (schedule != ContextSchedule::all_to_all || grid_.kv_heads % cp_.size() == 0)
        out.push_back(time(schedule, base, shards));
    return out;
  }

 private:
  AttentionOperands operands(std::int64_t rows) const {
    AttentionOperands p = random_operands(rows, grid_.heads, grid_.kv_heads, grid_.head_dim, ctx_);
    p.forward.pattern = p.backward.pattern = grid_.pattern;
    return p;
  }

  std::vector<Span> whole(std::int64_t length) const { return {{0, static_cast<std::int32_t>(length), 0, 0}}; }

  ContextShards shards_of(std::int64_t length) const {
    const bool zigzag = grid_.parallel.cp_layout == ContextLayoutChoice::automatic
                            ? grid_.pattern.is_dense()
                            : grid_.parallel.cp_layout == ContextLayoutChoice::zigzag;
    const std::int64_t chunks = cp_.size() * (zigzag ? 2 : 1);
    const ContextLayout layout(zigzag ? ContextLayoutKind::zigzag : ContextLayoutKind::contiguous, length, cp_.size(),
                               context_align({grid_.pattern}, length, chunks));
    return layout.shards(cp_.rank(), 1, whole(length));
  }

  // FLOP/s of every device on its own, all at once.
  void alone(ContextTiming& t) {
    const std::int64_t length = std::min(t.length, grid_.longest_alone);
    if (!alone_.contains(length)) {
      AttentionOperands p = operands(length);
      p.forward.queries = p.forward.keys = p.backward.queries = p.backward.keys = whole(length);
      const auto forward = [&] { attention_kernel(p.forward, ctx_); };
      const double f = cost(p.forward).flops / seconds_of(forward);
      const double both = (cost(p.forward).flops + cost(p.backward).flops) / seconds_of([&] {
                            forward();
                            attention_backward_kernel(p.backward, ctx_);
                          });
      alone_[length] = {f, both};
    }
    std::tie(t.forward_alone, t.both_alone) = alone_[length];
    const double pairs = kept_pairs(grid_.pattern, whole(t.length), whole(t.length), grid_.kv_heads);
    t.forward_flops = 4.0 * static_cast<double>(grid_.heads * grid_.head_dim) * pairs / cp_.size();
    t.both_flops = 3.5 * t.forward_flops;
  }

  ContextTiming time(ContextSchedule schedule, ContextTiming t, const std::shared_ptr<const ContextShards>& shards) {
    ParallelConfig config = grid_.parallel;
    config.cp_schedule = schedule;
    const auto exchange = make_context_parallel(traced_, config, mesh_.cp_nodes());
    t.schedule = exchange->schedule();
    const AttentionOperands p = operands(shards->tokens(cp_.rank()));
    const auto forward = [&] { exchange->forward(p.forward, shards, ctx_); };
    const auto both = [&] {
      forward();
      exchange->backward(p.backward, shards, ctx_);
    };
    both();
    ctx_.stream.synchronize();  // host waits: diagnosis
    const auto allocator = ctx_.stream.allocator();
    const std::size_t before = allocator->stats().in_use;
    const std::int64_t sent = exchange->bytes_sent();
    allocator->reset_peak();
    both();
    ctx_.stream.synchronize();  // host waits: diagnosis
    t.extra_bytes = allocator->stats().peak - before;
    t.sent_bytes = exchange->bytes_sent() - sent;
    t.forward_seconds = seconds_of(forward);
    t.both_seconds = seconds_of(both);
    if (schedule == ContextSchedule::ring) without_each_other(t, both);
    return t;
  }

  void without_each_other(ContextTiming& t, const std::function<void()>& both) {
    traced_.tracing = true;
    both();
    traced_.tracing = false;
    t.transfer_seconds = seconds_of([&] { traced_.replay(ctx_.stream); });
    traced_.forget();
    traced_.silent = true;
    t.computing_seconds = seconds_of(both);
    traced_.silent = false;
  }

  double once(const std::function<void()>& work, int times) {
    ctx_.stream.synchronize();             // host waits: diagnosis
    mesh_.host().barrier().synchronize();  // host waits: diagnosis
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) work();
    ctx_.stream.synchronize();  // host waits: diagnosis
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
    all_reduce_host(mesh_.host(), {&seconds, 1}, Reduce::max);
    return seconds;
  }
  // Of the slowest rank; the first call warms up.
  double seconds_of(const std::function<void()>& work) {
    once(work, 1);
    const double first = once(work, 1);
    return once(work, static_cast<int>(std::clamp(std::ceil(grid_.seconds / first), 1.0, 1000.0)));
  }

  const ContextGrid& grid_;
  Mesh& mesh_;
  Communicator& cp_;
  Context ctx_;
  TracedCommunicator traced_;
  std::map<std::int64_t, std::pair<double, double>> alone_;  // by length
};

}  // namespace

double ContextTiming::hidden() const {
  if (transfer_seconds <= 0) return 1;
  return 1 - std::max(0.0, both_seconds - computing_seconds) / transfer_seconds;
}

void time_context(const ContextGrid& g, Mesh& mesh, const Context& ctx,
                  const std::function<void(const ContextTiming&)>& report) {
  check(g.pattern, "--kind");
  Bench bench(g, mesh, ctx);
  for (const std::int64_t length : g.lengths)
    for (const ContextTiming& t : bench.run(length)) report(t);
}

}  // namespace ring
