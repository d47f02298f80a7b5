#include "bench/context.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>

#include "bench/attention.h"
#include "bench/traced_communicator.h"
#include "comm/host.h"
#include "kernels/attention/pairs.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"

namespace ring {
namespace {

constexpr int kTimelines = 3;

class ContextBench {
 public:
  ContextBench(const ContextGrid& g, Mesh& mesh, const ExecContext& ctx)
      : grid_(g), mesh_(mesh), cp_(mesh.axis("cp")), ctx_(ctx), traced_(cp_, *recorder_) {
    if (std::ranges::count(g.schedules, ContextSchedule::hybrid) == 0) return;
    const Mesh::NodeGroups groups = mesh.groups_by_node("cp", ring_options().per_node);
    node_.emplace(groups.node, *recorder_);
    between_nodes_.emplace(groups.between_nodes, *recorder_);
  }

  std::vector<ContextTiming> run(std::int64_t length) {
    ContextTiming base;
    base.length = length;
    alone(base);
    const auto shards = std::make_shared<const ContextShards>(shards_of(length));
    std::vector<ContextTiming> out;
    for (const ContextSchedule schedule : grid_.schedules) out.push_back(time(schedule, base, shards));
    return out;
  }

 private:
  AttentionOperands operands(std::int64_t rows) const {
    AttentionOperands p = random_operands(rows, grid_.heads, grid_.kv_heads, grid_.head_dim, ctx_);
    p.forward.pattern = p.backward.pattern = grid_.pattern;
    return p;
  }

  RingOptions ring_options() const { return grid_.parallel.ring_options(mesh_.nodes_along("cp")); }
  ContextRanks ranks() {
    if (node_) return {traced_, *node_, *between_nodes_};
    return traced_;
  }
  // Calls fn for each communicator.
  template <class Fn>
  void for_traced(const Fn& fn) {
    fn(traced_);
    if (node_) fn(*node_), fn(*between_nodes_);
  }

  std::vector<Span> whole(std::int64_t length) const { return {{0, static_cast<std::int32_t>(length), 0, 0}}; }

  ContextShards shards_of(std::int64_t length) const {
    const ContextLayout layout =
        choose_layout(grid_.parallel.cp_layout, {grid_.pattern}, grid_.kv_heads, length, cp_.size());
    return layout.shards(cp_.rank(), 1, whole(length));
  }

  // Measures the FLOP/s of each device on its own, all at the same time.
  void alone(ContextTiming& t) {
    const std::int64_t length = std::min(t.length, grid_.longest_alone);
    if (length > 0 && !alone_.contains(length)) {
      AttentionOperands p = operands(length);
      p.forward.queries = p.forward.keys = p.backward.queries = p.backward.keys = whole(length);
      const auto forward = [&] { attention_kernel(p.forward, ctx_); };
      const double flops = cost(p.forward).flops, f = flops / seconds_of(forward);
      const double both = 3.5 * flops / seconds_of([&] {
                            forward();
                            attention_backward_kernel(p.backward, ctx_);
                          });
      alone_[length] = {f, both};
    }
    if (length > 0) std::tie(t.forward_alone, t.both_alone) = alone_[length];
    const double pairs = kept_pairs(grid_.pattern, whole(t.length), whole(t.length), grid_.kv_heads);
    t.forward_flops = 4.0 * static_cast<double>(grid_.heads * grid_.head_dim) * pairs / cp_.size();
    t.both_flops = 3.5 * t.forward_flops;
  }

  ContextTiming time(ContextSchedule schedule, ContextTiming t, const std::shared_ptr<const ContextShards>& shards) {
    const auto exchange = make_context_parallel(ranks(), schedule, ring_options());
    t.schedule = exchange->schedule();
    AttentionOperands p = operands(shards->tokens(cp_.rank()));
    const auto forward = [&] { p.backward.selection = exchange->forward({p.forward}, shards, ctx_, {}); };
    const auto both = [&] {
      forward();
      exchange->backward({p.backward}, shards, ctx_);
    };
    both();
    ctx_.stream.synchronize();  // allowed host wait: diagnosis
    const auto allocator = ctx_.stream.allocator();
    const std::size_t before = allocator->stats().in_use;
    const std::int64_t sent = exchange->bytes_sent();
    allocator->reset_peak();
    both();
    ctx_.stream.synchronize();  // allowed host wait: diagnosis
    t.extra_bytes = allocator->stats().peak - before;
    for_traced([&](TracedCommunicator& c) { t.extra_bytes += c.receive_bytes(); });
    t.sent_bytes = exchange->bytes_sent() - sent;
    t.forward_seconds = seconds_of(forward);
    t.both_seconds = seconds_of(both);
    without_each_other(t, both);
    const std::optional<DType> gradients = distinct_gradients(p.forward.k.dtype());
    traced_.gradients = schedule != ContextSchedule::all_to_all ? gradients : std::nullopt;
    if (between_nodes_) between_nodes_->gradients = gradients;
    take_timelines(t, both);
    return t;
  }

  // Returns the type of messages with gradients of keys; nullopt if messages with keys have the same type.
  std::optional<DType> distinct_gradients(DType keys) const {
    const ContextMessages m = grid_.parallel.cp_messages;
    const DType gradients = m == ContextMessages::exact ? DType::f32 : DType::bf16;
    return m == ContextMessages::fp8 || keys != gradients ? std::optional(gradients) : std::nullopt;
  }

  void without_each_other(ContextTiming& t, const std::function<void()>& both) {
    for_traced([](TracedCommunicator& c) { c.tracing = true; });
    both();
    for_traced([](TracedCommunicator& c) { c.tracing = false; });
    const auto replay = [&] { for_traced([&](const TracedCommunicator& c) { c.replay(ctx_.stream); }); };
    if (any_host(mesh_.host(), t.sent_bytes > 0)) t.transfer_seconds = seconds_of(replay);
    for_traced([](TracedCommunicator& c) { c.clear_trace(), c.silent = true; });
    t.computing_seconds = seconds_of(both);
    for_traced([](TracedCommunicator& c) { c.silent = false; });
  }

  void take_timelines(ContextTiming& t, const std::function<void()>& both) {
    for_traced([](TracedCommunicator& c) { c.recording = true; });
    ctx_.observer = recorder_;
    std::vector<ContextTimeline> taken;
    std::vector<double> waited;
    for (int i = -1; i < kTimelines; ++i) {  // the first iteration creates streams and events
      ctx_.stream.synchronize();             // allowed host wait: diagnosis
      mesh_.host().barrier().synchronize();  // allowed host wait: diagnosis
      recorder_->start_recording(ctx_);
      both();
      ContextTimeline timeline = recorder_->finish_recording();
      if (i < 0) continue;
      waited.push_back(length_of(timeline.waiting()));
      taken.push_back(std::move(timeline));
    }
    for_traced([](TracedCommunicator& c) { c.recording = false; });
    ctx_.observer = nullptr;
    all_reduce_host(mesh_.host(), waited, Reduce::max);
    t.waited_seconds = median(waited);
    const auto at = std::find(waited.begin(), waited.end(), t.waited_seconds);
    t.timeline = std::move(taken[static_cast<std::size_t>(at - waited.begin())]);
  }

  double once(const std::function<void()>& work, int times) {
    ctx_.stream.synchronize();             // allowed host wait: diagnosis
    mesh_.host().barrier().synchronize();  // allowed host wait: diagnosis
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) work();
    ctx_.stream.synchronize();  // allowed host wait: diagnosis
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
    all_reduce_host(mesh_.host(), {&seconds, 1}, Reduce::max);
    return seconds;
  }
  // Returns the seconds on the slowest rank, after a warmup call.
  double seconds_of(const std::function<void()>& work) {
    once(work, 1);
    const double first = once(work, 1);
    return once(work, static_cast<int>(std::clamp(std::ceil(grid_.seconds / first), 1.0, 1000.0)));
  }

  const ContextGrid& grid_;
  Mesh& mesh_;
  Communicator& cp_;
  ExecContext ctx_;
  std::shared_ptr<TimelineRecorder> recorder_ = std::make_shared<TimelineRecorder>();
  TracedCommunicator traced_;
  std::optional<TracedCommunicator> node_, between_nodes_;  // only for hybrid
  // FLOP/s on a single device, by sequence length: of the forward, and of forward and backward together.
  std::map<std::int64_t, std::pair<double, double>> alone_;
};

}  // namespace

double ContextTiming::hidden_share() const {
  if (!(transfer_seconds > 0)) return 1;
  return std::clamp(1 - waited_seconds / transfer_seconds, 0.0, 1.0);
}

double ContextTiming::slowdown() const {
  return computing_seconds > 0 ? (both_seconds - computing_seconds) / computing_seconds : 0;
}

void time_context(const ContextGrid& g, Mesh& mesh, const ExecContext& ctx,
                  const std::function<void(const ContextTiming&)>& report) {
  check(g.pattern, "--kind");
  ContextBench bench(g, mesh, ctx);
  for (const std::int64_t length : g.lengths)
    for (const ContextTiming& t : bench.run(length)) report(t);
}

}  // namespace ring
