#include "bench/attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>
#include <tuple>

#include "kernels/attention/attention.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/selected/block_select.h"

namespace ring {
namespace {

// Sequences are stored one after the other.
AttentionOperands make_problem(const AttentionGrid& g, std::int64_t dim, std::int64_t length, bool causal,
                               const ExecContext& ctx) {
  const std::int64_t sequences = std::max<std::int64_t>(1, g.tokens / length);
  AttentionOperands p = random_operands(sequences * length, g.heads, g.kv_heads, dim, ctx);
  p.forward.pattern = p.backward.pattern = {.causal = causal};
  for (std::int64_t b = 0; b < sequences; ++b)
    p.forward.queries.push_back({static_cast<std::int32_t>(b * length), static_cast<std::int32_t>(length)});
  p.forward.keys = p.backward.queries = p.backward.keys = p.forward.queries;
  return p;
}

double seconds_of(const ExecContext& ctx, const std::function<void()>& queue) {
  const auto start = std::chrono::steady_clock::now();
  queue();
  ctx.stream.synchronize();  // allowed host wait: diagnosis
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the call with a copy of its block pattern that no cache contains.
template <class Args>
Args with_new_blocks(Args args) {
  static std::uint64_t generation = 0;
  if (const auto& blocks = args.pattern.blocks)
    args.pattern.blocks = std::make_shared<BlockPattern>(blocks->block(), std::vector{blocks->rule(0)},
                                                         std::vector<std::int32_t>{}, blocks->bits(), ++generation);
  return args;
}

// One kernel to be timed, with its operands.
struct AttentionJob {
  AttentionTiming timing;
  Pattern pattern;
  std::function<void()> call;
  std::function<std::function<void()>()> fresh;  // returns a call with a new block pattern
  std::function<void()> prepare;                 // computes the tensors that the call reads
  std::vector<double> seconds;
};

class AttentionBench {
 public:
  AttentionBench(const AttentionGrid& g, const ExecContext& ctx,
                 const std::function<void(const AttentionTiming&)>& report)
      : grid_(g), ctx_(ctx), report_(report) {}

  void run(std::int64_t dim, std::int64_t length, bool causal) {
    jobs_.clear();
    AttentionOperands p = make_problem(grid_, dim, length, causal, ctx_);
    const std::vector<Span> spans = p.forward.queries;
    AttentionTiming t{.head_dim = dim, .length = length, .causal = causal};
    t.sequences = static_cast<std::int64_t>(p.forward.queries.size());
    p.forward.dropout.rate = p.backward.dropout.rate = static_cast<float>(grid_.dropout);
    const double all = cost(p.forward).flops;
    for (const auto& [kind, pattern] : grid_.patterns) {
      p.forward.pattern = pattern;
      p.forward.pattern.causal = causal;
      p.backward.pattern = p.forward.pattern;
      p.forward.selection = p.backward.selection =
          select_blocks(p.forward.pattern, p.forward.q, p.forward.k, p.forward.scale, spans, ctx_);
      t.kind = kind;
      t.kept = cost(p.forward).flops / all;
      add_jobs(p, t);
    }
    for (AttentionJob& job : jobs_) start(job);
    for (int round = 0; round < grid_.rounds; ++round)
      for (AttentionJob& job : jobs_) measure(job);
    report();
  }

 private:
  void add_jobs(const AttentionOperands& p, AttentionTiming t) {
    if (p.forward.pattern.selects()) add_selection(p.forward, t);
    t.flops = cost(p.forward).flops;
    add_jobs(attention_kernel, p.forward, t, [] {});
    // Computes the tensors that the backward reads, whatever kernel was measured before.
    const auto prepare = [forward = p.forward, ctx = ctx_] { attention_kernel(forward, ctx); };
    t.pass = AttentionPass::backward;
    t.flops *= 2.5;  // five GEMMs over the kept pairs; the forward has two
    add_jobs(attention_backward_kernel, p.backward, t, prepare);
    if (ctx_.stream.device().backend == Backend::cpu) return;  // on the CPU everything is deterministic
    t.deterministic = false;
    add_jobs(attention_backward_kernel, p.backward, t, prepare);
  }

  // Adds the selection of blocks: pools, scores and choice.
  void add_selection(const Attention& args, AttentionTiming t) {
    t.pass = AttentionPass::select;
    t.candidate = "content";
    const auto call = [args, ctx = ctx_] {
      select_blocks(args.pattern, args.q, args.k, args.scale, args.queries, ctx);
    };
    jobs_.push_back(
        {.timing = t, .pattern = args.pattern, .call = call, .fresh = [call] { return call; }, .prepare = [] {}});
  }

  template <class Args>
  void add_jobs(const Kernel<Args>& slot, const Args& args, AttentionTiming t, const std::function<void()>& prepare) {
    ExecContext ctx = ctx_;
    ctx.deterministic = t.deterministic;
    for (const auto& c : slot.candidates(ctx.stream.device().backend)) {
      if (!grid_.candidates.empty() && std::ranges::find(grid_.candidates, c.name) == grid_.candidates.end()) continue;
      if (c.supports && !c.supports(args, ctx)) continue;
      t.candidate = c.name;
      jobs_.push_back(
          {.timing = t,
           .pattern = args.pattern,
           .call = [fn = c.fn, args, ctx] { fn(args, ctx); },
           .fresh = [fn = c.fn, args, ctx] { return [fn, args = with_new_blocks(args), ctx] { fn(args, ctx); }; },
           .prepare = prepare});
    }
  }

  // Decides whether the job is skipped; if it is not, measures its memory and the time that new block lists add.
  void start(AttentionJob& job) {
    AttentionTiming& t = job.timing;
    const double rate = rates_[key(t)];
    t.expected = rate > 0 ? t.flops / rate : 0;
    if (t.expected > grid_.max_seconds) return;
    job.prepare();
    job.call();
    ctx_.stream.synchronize();  // allowed host wait: diagnosis
    const auto allocator = ctx_.stream.allocator();
    const std::size_t before = allocator->stats().in_use;
    allocator->reset_peak();
    job.fresh()();
    ctx_.stream.synchronize();  // allowed host wait: diagnosis
    t.extra_bytes = allocator->stats().peak - before;
    if (job.pattern.blocks && !job.pattern.selects()) t.lists_seconds = time_lists(job);
  }

  // Returns the seconds that a new pattern adds to a call: the difference between the medians of alternating calls.
  double time_lists(const AttentionJob& job) {
    std::vector<double> known, fresh;
    for (int i = 0; i < 15; ++i) {
      known.push_back(seconds_of(ctx_, job.call));
      fresh.push_back(seconds_of(ctx_, job.fresh()));
    }
    return std::max(0.0, median(fresh) - median(known));
  }

  void measure(AttentionJob& job) {
    if (job.timing.expected > grid_.max_seconds) return;
    job.prepare();
    if (grid_.rest > 0) {
      ctx_.stream.synchronize();  // allowed host wait: diagnosis
      std::this_thread::sleep_for(std::chrono::duration<double>(grid_.rest));
    }
    job.seconds.push_back(measure_sustained_seconds(ctx_, grid_.seconds, job.call));
  }

  void report() {
    // Seconds of the fastest dense kernel other than cuDNN's, by pass and determinism.
    std::map<std::pair<AttentionPass, bool>, double> dense;
    for (AttentionJob& job : jobs_) {
      AttentionTiming& t = job.timing;
      if (job.seconds.empty()) continue;
      t.seconds = median(job.seconds);
      const auto [min_seconds, max_seconds] = std::ranges::minmax(job.seconds);
      t.spread = (max_seconds - min_seconds) / t.seconds;
      rates_[key(t)] = t.flops / t.seconds;
      double& min = dense[{t.pass, t.deterministic}];
      if (job.pattern.is_dense() && t.candidate != "cudnn" && (min == 0 || t.seconds < min)) min = t.seconds;
    }
    for (AttentionJob& job : jobs_) {
      AttentionTiming& t = job.timing;
      if (const double seconds = dense[{t.pass, t.deterministic}]; seconds > 0) t.of_dense = t.seconds / seconds;
      report_(t);
    }
  }

  using Key = std::tuple<std::string, std::string, AttentionPass, bool, bool, std::int64_t>;
  static Key key(const AttentionTiming& t) {
    return {t.candidate, t.kind, t.pass, t.deterministic, t.causal, t.head_dim};
  }

  const AttentionGrid& grid_;
  ExecContext ctx_;
  const std::function<void(const AttentionTiming&)>& report_;
  std::vector<AttentionJob> jobs_;  // jobs of the current shape
  std::map<Key, double> rates_;     // latest rate of each kernel, in FLOP/s
};

}  // namespace

AttentionOperands random_operands(std::int64_t rows, std::int64_t heads, std::int64_t kv_heads, std::int64_t dim,
                                  const ExecContext& ctx) {
  const DType type = activation_type(ctx.precision);
  const Shape shape{rows, heads + 2 * kv_heads, dim}, out{rows, heads, dim};
  const Tensor qkv = random_tensor(shape, type, ctx, 1), dqkv = ctx.empty(shape, type);
  AttentionOperands p;
  Attention& f = p.forward;
  f.q = qkv.narrow(1, 0, heads);
  f.k = qkv.narrow(1, heads, kv_heads);
  f.v = qkv.narrow(1, heads + kv_heads, kv_heads);
  f.out = ctx.empty(out, type);
  f.lse = ctx.empty({heads, rows});
  f.scale = 1 / std::sqrt(static_cast<float>(dim));
  p.backward = {.q = f.q,
                .k = f.k,
                .v = f.v,
                .out = f.out,
                .lse = f.lse,
                .dout = random_tensor(out, type, ctx, 2),
                .dq = dqkv.narrow(1, 0, heads),
                .dk = dqkv.narrow(1, heads, kv_heads),
                .dv = dqkv.narrow(1, heads + kv_heads, kv_heads),
                .scale = f.scale};
  return p;
}

void check_grid(const AttentionGrid& g) {
  if (g.heads < 1 || g.kv_heads < 1 || g.heads % g.kv_heads)
    fail("--heads: ", g.heads, " heads cannot be divided evenly among ", g.kv_heads, " KV heads");
  for (const std::int64_t d : g.head_dims)
    if (d < 8 || d % 8) fail("--head-dim: ", d, " is not a positive multiple of 8");
  for (const std::int64_t s : g.lengths)
    if (s < 1 || s >= std::int64_t{1} << 30) fail("--length: ", s, " is not between 1 and 2^30");
  for (const NamedPattern& p : g.patterns) {
    check(p.pattern, "--kind");
    if (p.pattern.selects() && std::ranges::find(g.causal, false) != g.causal.end())
      fail("--keep: blocks are selected by content only in causal attention. Add --causal, and leave out --full");
  }
  if (g.rounds < 1) fail("--rounds: ", g.rounds, " is not positive");
  for (const std::string& name : g.candidates)
    if (std::ranges::none_of(kernel_registry(), [&](const KernelInfo& k) {
          return k.candidate == name && (k.slot == "attention" || k.slot == "attention_backward");
        }))
      fail("--candidate: this build has no attention kernel ", name);
  if (g.tokens < 1 || g.tokens >= std::int64_t{1} << 30) fail("--tokens: ", g.tokens, " is not between 1 and 2^30");
}

void time_attention(const AttentionGrid& g, const ExecContext& ctx,
                    const std::function<void(const AttentionTiming&)>& report) {
  check_grid(g);
  AttentionBench bench(g, ctx, report);
  for (const std::int64_t dim : g.head_dims)
    for (const bool causal : g.causal)
      for (const std::int64_t length : g.lengths) bench.run(dim, length, causal);
}

}  // namespace ring
