// Picks the fastest schedule on this machine for a shape, measured by all ranks together at its first use.

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/pairs.h"
#include "kernels/tuning.h"
#include "parallel/context/exchange.h"
#include "parallel/context/heads.h"

namespace ring {
namespace {

// If all ranks' keys and values need more bytes in f32, gather is not measured: every rank would hold all of them.
constexpr double kMaxKeyBytes = 1e9;
constexpr double kLongest = 1;  // seconds of a forward and backward; slower calls are not measured
// A schedule must take less than this share of the best time so far; a smaller gain is noise.
constexpr float kClearly = 0.97f;
constexpr double kMaxWorkspace = 4.3e9;  // upper bound on the workspace bytes of an attention kernel

class MeasuredContext final : public ContextParallel {
 public:
  MeasuredContext(Communicator& comm, const RingOptions& ring)
      : ContextParallel(comm), message_bytes_(ring.message_bytes), messages_(ring.messages) {
    schedules_.push_back(make_ring(comm, ring));
    // With several nodes the ring is used, the only schedule that distinguishes nodes.
    if (ring.per_node > 0 && ring.per_node < comm.size()) return;
    if (messages_ == ContextMessages::exact) schedules_.push_back(make_all_to_all(comm));
    schedules_.push_back(make_gather(comm, ring.keys, messages_));
  }
  std::string_view schedule() const override { return "auto"; }
  std::int64_t bytes_sent() const override {
    std::int64_t sum = bytes_sent_;
    for (const auto& s : schedules_) sum += s->bytes_sent();
    return sum;
  }

  BlockSelection forward(const PooledAttention& a, const std::shared_ptr<const ContextShards>& shards,
                         const ExecContext& ctx, const AttentionWatch& watch) override {
    return choose(a.pairs, shards, ctx).forward(a, shards, ctx, watch);
  }
  void backward(const PooledAttentionBackward& args, const std::shared_ptr<const ContextShards>& shards,
                const ExecContext& ctx) override {
    const AttentionBackward& b = args.pairs;
    Attention a;
    a.q = b.q, a.k = b.k, a.v = b.v, a.out = b.out, a.lse = b.lse, a.scale = b.scale, a.pattern = b.pattern;
    a.soft_cap = b.soft_cap;
    a.dropout = b.dropout;  // part of the tuning key, which must equal the key of the forward call
    choose(a, shards, ctx).backward(args, shards, ctx);
  }
  double pairs(const std::shared_ptr<const ContextShards>& shards, const Pattern& pattern,
               std::int64_t kv_heads) override {
    const auto latest = std::ranges::find_if(latest_, [&](const auto& l) { return same_pairs(l.first, pattern); });
    return (latest == latest_.end() ? schedules_.front().get() : latest->second)->pairs(shards, pattern, kv_heads);
  }

 private:
  // Returns the schedule for a call. Without ctx.tuning (on CPUs, or for work done only once) returns the ring and
  // measures nothing.
  ContextParallel& choose(const Attention& a, const std::shared_ptr<const ContextShards>& shards,
                          const ExecContext& ctx) {
    if (!ctx.tuning || schedules_.size() == 1) return *schedules_.front();
    ContextParallel& best = find_or_choose(a, shards, ctx);
    const auto latest = std::ranges::find_if(latest_, [&](const auto& l) { return same_pairs(l.first, a.pattern); });
    if (latest == latest_.end())
      latest_.emplace_back(a.pattern, &best);
    else
      latest->second = &best;
    return best;
  }

  ContextParallel& find_or_choose(const Attention& a, const std::shared_ptr<const ContextShards>& shards,
                                  const ExecContext& ctx) {
    const std::string key = key_of(a, *shards, ctx);
    const auto known = chosen_.find(key);
    const std::uint64_t generation = ctx.tuning->generation();
    if (known != chosen_.end() && known->second.first == generation) return *known->second.second;
    // If the key is in chosen_, all ranks chose a schedule for it together, so each rank's tuning store has the key.
    ContextParallel* best = known != chosen_.end() ? find(ctx.tuning->find(key)) : nullptr;
    if (!best) best = choose_together(key, a, shards, ctx);
    chosen_[key] = {ctx.tuning->generation(), best};
    return *best;
  }

  // Returns the schedule for a new key. Collective. Rank 0 decides: another rank's store may hold a different choice or
  // none, and ranks with different schedules would deadlock.
  ContextParallel* choose_together(const std::string& key, const Attention& a,
                                   const std::shared_ptr<const ContextShards>& shards, const ExecContext& ctx) {
    const bool decides = comm_.rank() == 0;
    const std::optional<std::string> known = decides ? ctx.tuning->find(key) : std::nullopt;
    ContextParallel* best = of_rank_0(find(known), ctx);
    if (best == nullptr) {
      const bool measures = ctx.tuning->measures() && !takes_long(a, *shards);
      best = measures ? measure(a, shards, ctx) : schedules_.front().get();
      if (decides) best = find(ctx.tuning->record(key, std::string(best->schedule()), known));
      best = of_rank_0(best, ctx);
    }
    RING_CHECK(best != nullptr, "context attention: the stored choice for ", key, " is not a schedule");
    if (!decides) ctx.tuning->merge_record(to_text(ChoiceMap{{key, std::string(best->schedule())}}));
    return best;
  }

  // Returns rank 0's schedule; null if rank 0 has none.
  ContextParallel* of_rank_0(const ContextParallel* mine, const ExecContext& ctx) {
    float position = 0;
    for (std::size_t i = 0; i < schedules_.size(); ++i)
      if (comm_.rank() == 0 && schedules_[i].get() == mine) position = static_cast<float>(i + 1);
    const auto index = static_cast<std::size_t>(largest_of_any_rank({position}, ctx)[0]);
    return index == 0 ? nullptr : schedules_[index - 1].get();
  }

  ContextParallel* find(const std::optional<std::string>& name) const {
    for (const auto& s : schedules_)
      if (name && *name == s->schedule()) return s.get();
    return nullptr;
  }

  // Returns the tuning key of a call, the same on every rank.
  std::string key_of(const Attention& a, const ContextShards& shards, const ExecContext& ctx) const {
    return str("context attention, ", ctx.stream.impl().device_name(), ", ", comm_.size(), " ranks",
               ctx.deterministic ? ", deterministic, " : ", ", a.q.dtype(), ", ", a.q.dim(1), " of ", a.k.dim(1),
               " heads x ", a.q.dim(2), ", ", pattern_key(a.pattern), ", ", shards.tokens(), " tokens in ",
               lengths_of(shards.documents), a.dropout.rate > 0 ? ", dropout" : "",
               messages_ == ContextMessages::exact ? "" : str(", ", to_string(messages_), " messages"));
  }

  // Returns true if a measurement, which makes several calls of each schedule, would cost more time than it saves.
  bool takes_long(const Attention& a, const ContextShards& s) const {
    const double pairs = kept_pairs(a.pattern, s.documents, s.documents, a.k.dim(1));
    return 14.0 * static_cast<double>(a.q.dim(1) * a.q.dim(2)) * pairs / comm_.size() > kLongest * kRoughGpuFlops;
  }

  // Describes document lengths for the key. Packed documents differ in each step: similar mean lengths get the same
  // key.
  static std::string lengths_of(const std::vector<Span>& documents) {
    double tokens = 0;
    for (const Span& d : documents) tokens += d.count;
    const bool alike = std::ranges::all_of(documents, [&](const Span& d) { return d.count == documents[0].count; });
    if (alike) return str(documents.size(), " documents");
    return str("documents of ",
               std::bit_ceil(static_cast<std::uint64_t>(tokens / static_cast<double>(documents.size()))));
  }

  bool fits(const ContextParallel& s, const Attention& a, const ContextShards& shards) const {
    if (s.schedule() == "all_to_all") return a.k.dim(1) % comm_.size() == 0;
    if (s.schedule() == "gather")
      return 2.0 * 4 * static_cast<double>(shards.tokens() * a.k.dim(1) * a.k.dim(2)) < kMaxKeyBytes;
    return true;
  }

  // Returns an upper bound on the bytes of a forward and backward call, excluding operands and results.
  double bytes_of(const ContextParallel& s, const Attention& a, const ContextShards& shards,
                  const ExecContext& ctx) const {
    const double all = static_cast<double>(shards.tokens()), mine = all / comm_.size();
    const auto heads = static_cast<double>(a.q.dim(1)), kv_heads = static_cast<double>(a.k.dim(1)),
               dim = static_cast<double>(a.q.dim(2)), size = static_cast<double>(size_of(a.q.dtype()));
    const double keys = s.schedule() == "gather" ? all : mine;
    double bytes = 4 * dim * (2 * mine * heads + 4 * keys * kv_heads);  // accumulators and gradients in f32
    if (messages_ == ContextMessages::fp8) bytes += size * dim * 2 * keys * kv_heads;  // decoded keys and values
    if (s.schedule() == "ring")
      bytes *= static_cast<double>(heads_at_once(shards, a.pattern, a.k.dim(1), a.k.dim(2), message_bytes_)) / kv_heads;
    // Copies of keys, values, queries and results that are sent, received or reordered.
    if (s.schedule() == "gather") bytes += size * dim * 2 * 2 * all * kv_heads;
    if (s.schedule() == "all_to_all") bytes += size * dim * 3 * mine * (4 * heads + 4 * kv_heads);
    const double pairs = kept_pairs(a.pattern, shards.documents, shards.documents, a.k.dim(1)) / comm_.size();
    return bytes + std::min(kMaxWorkspace, ctx.deterministic ? 2 * heads * pairs : 0);
  }

  static bool can_allocate(double bytes, const ExecContext& ctx) {
    try {
      ctx.empty({static_cast<std::int64_t>(bytes)}, DType::u8, Lifetime::run);
    } catch (const OutOfMemory&) {
      return false;
    }
    ctx.stream.allocator()->trim();
    return true;
  }

  std::vector<float> largest_of_any_rank(const std::vector<float>& values, const ExecContext& ctx) {
    const Tensor t = from_host(values, ctx.stream, Lifetime::run);
    comm_.all_reduce(t, Reduce::max, ctx.stream.record()).wait(ctx.stream);
    return to_host<float>(t, ctx.stream);
  }

  // Returns for each schedule whether it fits into memory on all ranks. If one rank ran out of memory within a
  // schedule, the others would wait for that rank.
  std::vector<bool> able(const Attention& a, const ContextShards& shards, const ExecContext& ctx) {
    const auto results = static_cast<double>(2 * (a.q.bytes() + a.k.bytes() + a.v.bytes()));
    std::vector<float> no;
    double bytes = results;  // grows by each schedule that fits: its receive buffers may never be freed
    for (const auto& s : schedules_) {
      const double with = fits(*s, a, shards) ? bytes + bytes_of(*s, a, shards, ctx) : 0;
      const bool can = with > 0 && can_allocate(with, ctx);
      if (can) bytes = with;
      no.push_back(can ? 0.0f : 1.0f);
    }
    std::vector<bool> out;
    for (const float n : largest_of_any_rank(no, ctx)) out.push_back(n == 0);
    return out;
  }

  ContextParallel* measure(const Attention& a, const std::shared_ptr<const ContextShards>& shards,
                           const ExecContext& ctx) {
    const std::vector<bool> can = able(a, *shards, ctx);
    if (std::ranges::count(can, true) < 2 || !can[0]) return schedules_.front().get();
    Attention f = a;
    const auto like = [&](const Tensor& t) { return ctx.empty(t.shape(), t.dtype(), Lifetime::run); };
    f.out = like(a.out);
    f.lse = like(a.lse);
    AttentionBackward b{.q = f.q, .k = f.k, .v = f.v, .out = f.out, .lse = f.lse, .dout = f.out};
    b.dq = like(f.q);
    b.dk = like(f.k);
    b.dv = like(f.v);
    b.scale = f.scale, b.pattern = f.pattern, b.dropout = f.dropout, b.soft_cap = f.soft_cap;
    std::vector<float> seconds(schedules_.size(), std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < schedules_.size(); ++i)
      if (can[i]) seconds[i] = seconds_of(*schedules_[i], f, b, shards, ctx);
    seconds = largest_of_any_rank(seconds, ctx);
    std::size_t best = 0;
    for (std::size_t i = 1; i < seconds.size(); ++i)
      if (seconds[i] < kClearly * seconds[best]) best = i;
    return schedules_[best].get();
  }

  static float seconds_of(ContextParallel& s, const Attention& f, const AttentionBackward& b,
                          const std::shared_ptr<const ContextShards>& shards, const ExecContext& ctx) {
    Event start;
    for (int i = 0; i < 3; ++i) {  // the first iteration makes plans and tunes kernels
      if (i == 1) start = ctx.stream.record_time();
      s.forward({f}, shards, ctx, {});
      s.backward({b}, shards, ctx);
    }
    const Event end = ctx.stream.record_time();
    end.synchronize();  // allowed host wait: start (measuring)
    return static_cast<float>(end.seconds_after(start) / 2);
  }

  std::int64_t message_bytes_;
  ContextMessages messages_;
  std::vector<std::unique_ptr<ContextParallel>> schedules_;  // in order of preference
  // Chosen schedule by key, with the tuning generation in which it was chosen.
  std::map<std::string, std::pair<std::uint64_t, ContextParallel*>> chosen_;
  std::vector<std::pair<Pattern, ContextParallel*>> latest_;  // schedule of the latest call with each pattern
};

}  // namespace

std::unique_ptr<ContextParallel> make_measured_context(Communicator& comm, const RingOptions& ring) {
  return std::make_unique<MeasuredContext>(comm, ring);
}

}  // namespace ring
