// Attention kernels chosen by measurement: calls that share a choice, and measurements that leave results unchanged.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "kernels/attention/selected/block_select.h"
#include "kernels/tuning.h"
#include "tests/kernels/gpu_attention_problem.h"

namespace ring::test {
namespace {

// Returns rows filled with packed documents: many short ones and few long ones.
std::vector<Span> packed(std::int32_t rows, std::int32_t row, double mean, std::mt19937& random) {
  std::lognormal_distribution<double> lengths(std::log(mean), 0.7);
  std::vector<std::int32_t> offsets{0}, begins;
  for (std::int32_t r = 0; r < rows; ++r) {
    begins.push_back(r * row);
    for (std::int32_t end = r * row; end < (r + 1) * row;) {
      end = std::min((r + 1) * row, end + 1 + static_cast<std::int32_t>(lengths(random)));
      offsets.push_back(end);
    }
  }
  return spans_of(offsets, begins);
}

class AttentionChoice : public testing::Test {
 protected:
  Attention call(const Pattern& pattern, const std::vector<Span>& spans, std::int64_t tokens = 16384,
                 DType type = DType::bf16, std::int64_t heads = 4, std::int64_t kv_heads = 2) const {
    const Tensor q = ctx.empty({tokens, heads, 8}, type), k = ctx.empty({tokens, kv_heads, 8}, type);
    return {q, k, k, q, ctx.empty({heads, tokens}), spans, spans, 1, pattern, {}};
  }
  std::string key(const Pattern& pattern) const { return choice_key(call(pattern, spans_of({0, 8192, 16384}))); }

  const ExecContext ctx{Stream::cpu(1)};
};

TEST_F(AttentionChoice, PackedDocumentsShareFewChoices) {
  std::mt19937 random(1);
  for (const double mean : {60.0, 400.0, 3000.0}) {
    std::set<std::string> keys;
    std::set<std::int32_t> longest;
    for (int step = 0; step < 300; ++step) {
      const std::vector<Span> spans = packed(2, 8192, mean, random);
      keys.insert(choice_key(call(dense(), spans)));
      longest.insert(std::ranges::max_element(spans, {}, &Span::count)->count);
    }
    EXPECT_LE(keys.size(), mean < 1000 ? 2u : 3u) << "documents of about " << mean << " tokens";
    EXPECT_GT(longest.size(), 50u);  // the longest documents did differ
  }
  EXPECT_NE(choice_key(call(dense(), packed(2, 8192, 60, random))),
            choice_key(call(dense(), packed(2, 8192, 3000, random))));
}

TEST_F(AttentionChoice, KeysDifferInPropertiesThatAffectSpeed) {
  const std::vector<Span> spans = spans_of({0, 8192, 16384});
  const BlockRule rule{.local = 2};
  std::vector<std::string> keys{
      key(dense()),
      key(dense(false)),
      key(window(512)),
      key(window(1024)),
      key(window(512, 4)),
      key(window(512, 0, false)),
      key(dilated({{512, 1}, {2048, 4}})),
      key(dilated({{512, 1}, {2048, 8}})),
      key(dilated({{512, 1}, {4096, 4}})),
      key(dilated({{512, 1}, {2048, 4}}, true)),
      key(block_sparse(64, {rule})),
      key(block_sparse(128, {rule})),
      key(block_sparse(64, {{.local = 3}})),
      choice_key(call(dense(), spans, 16384, DType::f32)),
      choice_key(call(dense(), spans, 16384, DType::bf16, 8)),
      choice_key(call(dense(), spans, 16384, DType::bf16, 4, 4)),
      choice_key(call(dense(), spans, 40000)),
      choice_key(call(dense(), spans_of({0, 16384}))),
  };
  Attention wide = call(dense(), spans);
  wide.out = ctx.empty(wide.q.shape());
  keys.push_back(choice_key(wide));
  Attention head = call(dense(), spans);
  head.q = ctx.empty({16384, 4, 16}, DType::bf16);
  keys.push_back(choice_key(head));
  Attention dropped = call(dense(), spans);
  dropped.dropout.rate = 0.1f;
  keys.push_back(choice_key(dropped));
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
}

TEST_F(AttentionChoice, KeysIgnorePropertiesThatDoNotAffectSpeed) {
  EXPECT_EQ(key(dilated({{512, 1}, {2048, 4}}, false, 1)), key(dilated({{512, 1}, {2048, 4}})));  // of other layers
  Attention a = call(dense(), spans_of({0, 8192, 16384}));
  const std::string without = choice_key(a);
  a.carry = ctx.empty(a.q.shape());
  EXPECT_EQ(choice_key(a), without);
  a.scale = 2;
  EXPECT_EQ(choice_key(a), without);
}

TEST_F(AttentionChoice, LongCallsAreShortened) {
  const ExecContext ctx = poisoned_context(1);
  Attention a;
  a.q = a.out = ctx.empty({100'000, 2, 8}), a.k = a.v = ctx.empty({100'000, 1, 8}), a.lse = ctx.empty({2, 100'000});
  a.queries = {{0, 65'536, 65'536, 0}, {65'536, 32'768, 0, 0}, {99'000, 700, 0, 0}};
  a.keys = {{0, 32'768, 0, 0}, {32'768, 32'768, 0, 0}, {99'000, 700, 0, 0}};
  const std::vector<Span> queries = a.queries;
  const double all = cost(a).flops;
  limit_work(a, all);
  EXPECT_EQ(a.queries, queries);
  limit_work(a, all / 64);
  EXPECT_EQ(a.queries[0], (Span{0, 8192, 65'536, 0}));  // still comes after its keys
  EXPECT_EQ(a.keys[0], (Span{0, 4096, 0, 0}));
  EXPECT_EQ(a.queries[1].count, a.keys[1].count);  // still a square
  EXPECT_EQ(a.queries[2].count, 700);
  EXPECT_NEAR(cost(a).flops, all / 64, all / 640);
  limit_work(a, 1);
  EXPECT_EQ(a.keys[0].count, 1024);

  a.queries = queries;
  a.pattern = window(50);
  limit_work(a, 1);
  EXPECT_EQ(a.queries, queries);
}

// Arguments of the calls of two candidates that compute the same, the second without delay.
struct Seen {
  bool carry;
  const std::byte* result;
};
std::vector<Seen> seen;

void note(const Attention& a) { seen.push_back({a.carry.defined(), a.out.raw()}); }
void note(const AttentionBackward& a) { seen.push_back({a.carry_dq.defined(), a.dq.raw()}); }

template <class Args>
const Kernel<Args>& real_slot() {
  if constexpr (std::is_same_v<Args, Attention>) return attention_kernel;
  if constexpr (std::is_same_v<Args, AttentionBackward>) return attention_backward_kernel;
}
template <class Args>
void run_fast(const Args& args, const ExecContext& ctx) {
  note(args);
  real_slot<Args>().candidates(Backend::cpu)[0].fn(args, ctx);
}
template <class Args>
void run_slow(const Args& args, const ExecContext& ctx) {
  run_fast(args, ctx);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

template <class Args>
class TwoKernels {
 public:
  TwoKernels() : registered_(static_cast<std::ptrdiff_t>(kernel_registry().size())), slot("attention", choose_fastest) {
    slot.add(Backend::cpu, {"slow", run_slow<Args>, nullptr, 2});
    slot.add(Backend::cpu, {"fast", run_fast<Args>, nullptr, 1});
  }
  ~TwoKernels() { kernel_registry().erase(kernel_registry().begin() + registered_, kernel_registry().end()); }
  TwoKernels(const TwoKernels&) = delete;
  TwoKernels& operator=(const TwoKernels&) = delete;

 private:
  const std::ptrdiff_t registered_;

 public:
  Kernel<Args> slot;
};

// Operands and results of one call, with values in the carries. Measuring must not change them.
struct Operands {
  static constexpr std::int32_t n = 320;
  ExecContext ctx = poisoned_context(1);
  std::vector<Span> spans = spans_of({0, 40, n});
  Tensor q = values("q", {n, 4, 16}), k = values("k", {n, 2, 16}), v = values("v", {n, 2, 16});
  Tensor out = values("out", {n, 4, 16}), lse = values("lse", {4, n}), dout = values("dout", {n, 4, 16});
  Tensor dq = values("dq", {n, 4, 16}), dk = values("dk", {n, 2, 16}), dv = values("dv", {n, 2, 16});
  Pattern pattern;
  BlockSelection selection;

  explicit Operands(const Pattern& p) : pattern(p), selection(select_blocks(p, q, k, 0.25f, spans, ctx)) {}
  Tensor values(const std::string& name, const Shape& shape) const {
    return make_tensor(shape, DType::f32, random_values(name, shape.numel()), ctx);
  }
  Attention forward(bool carry) const {
    return {q, k, v, out, lse, spans, spans, 0.25f, pattern, carry ? out : Tensor{}, {}, selection};
  }
  AttentionBackward backward(bool carry) const {
    AttentionBackward a{q, k, v, out, lse, dout, dq, dk, dv, spans, spans, 0.25f, pattern, {}, {}, {}, {}, selection};
    if (carry) a.carry_dq = dq, a.carry_dk = dk, a.carry_dv = dv;
    return a;
  }
  std::vector<Values> all() const {
    std::vector<Values> r;
    for (const Tensor& t : {q, k, v, out, lse, dout, dq, dk, dv}) r.push_back(read_values(t));
    return r;
  }
};
Attention call(const Operands& o, bool carry, Attention*) { return o.forward(carry); }
AttentionBackward call(const Operands& o, bool carry, AttentionBackward*) { return o.backward(carry); }
const std::byte* result(const Attention& a) { return a.out.raw(); }
const std::byte* result(const AttentionBackward& a) { return a.dq.raw(); }

template <class Args>
void expect_unharmed(const Pattern& pattern, bool carry) {
  const TwoKernels<Args> kernels;
  Operands want(pattern), got(pattern);
  const Args args = call(got, carry, static_cast<Args*>(nullptr));
  real_slot<Args>().candidates(Backend::cpu)[0].fn(call(want, carry, static_cast<Args*>(nullptr)), want.ctx);
  got.ctx.tuning = std::make_shared<Tuning>("");
  seen.clear();
  kernels.slot(args, got.ctx);
  EXPECT_EQ(got.all(), want.all());
  ASSERT_GT(seen.size(), 4u) << "nothing was measured";
  for (std::size_t i = 0; i + 1 < seen.size(); ++i) {
    EXPECT_FALSE(seen[i].carry);
    EXPECT_EQ(seen[i].result == result(args), !carry) << "call " << i;
  }
  EXPECT_EQ(seen.back().carry, carry);
  EXPECT_EQ(seen.back().result, result(args));
  // Calls with and without a carry share one choice.
  seen.clear();
  const auto& chosen = kernels.slot.choose(call(got, !carry, static_cast<Args*>(nullptr)), got.ctx);
  EXPECT_EQ(chosen.name, "fast");
  EXPECT_TRUE(seen.empty());
}

TEST_F(AttentionChoice, MeasuringHarmsNoResults) {
  const BlockRule content{.kind = BlockRuleKind::content, .keep = 3};
  for (const Pattern& pattern : {dense(), block_sparse(64, {{.local = 2}}), block_sparse(64, {content})})
    for (const bool carry : {false, true}) {
      SCOPED_TRACE(str(pattern_key(pattern), carry ? ", with a carry" : ", without a carry"));
      expect_unharmed<Attention>(pattern, carry);
      expect_unharmed<AttentionBackward>(pattern, carry);
    }
}

class ChosenNames final : public KernelObserver {
 public:
  void call(const KernelCall& c, const ExecContext&, const std::function<void()>& run) override {
    if (c.slot.starts_with("attention")) seen.emplace_back(c.candidate);
    run();
  }
  std::vector<std::string> seen;
};

// Forward and backward calls of several patterns on a GPU.
class GpuAttentionChoice : public GpuAttention {
 protected:
  void SetUp() override {
    GpuAttention::SetUp();
    if (IsSkipped()) return;
    path_ = std::filesystem::temp_directory_path() / str("ringmaster-attention-choice-", getpid(), ".yaml");
    std::filesystem::remove(path_);
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove(path_);
  }

  struct Result {
    std::vector<std::string> names;
    std::vector<AttentionResults> values;
    std::string choices;  // hash of the tuning file
    std::uint64_t waits = 0;
  };
  static GpuProblem problem(const Pattern& pattern) {
    return {.offsets = {0, 1024, 2048}, .heads = 4, .kv_heads = 2, .dim = 128, .pattern = pattern};
  }
  // The last pattern selects its blocks.
  static std::vector<Pattern> patterns() {
    return {dense(),
            window(200),
            window(200, 16),
            dilated({{256, 1}, {1024, 4}}),
            block_sparse(64, {{.local = 2, .first = 1}}),
            block_sparse(128, {{.kind = BlockRuleKind::content, .local = 2, .keep = 4}})};
  }
  Result run(const ExecContext& base, int layers = 1) const {
    Result r;
    for (const Pattern& pattern : patterns()) run(problem(pattern), base, layers, r);
    if (base.tuning) base.tuning->save_if_changed(), r.choices = base.tuning->text();
    return r;
  }
  ExecContext exec() const {
    ExecContext ctx{Stream::create({Backend::cuda, 0})};
    ctx.precision = Precision::bf16;
    ctx.tuning = std::make_shared<Tuning>(path_);
    return ctx;
  }

  static Attention forward_of(const GpuProblem& p, const GpuOperands& x, const ExecContext& ctx) {
    const auto scale = static_cast<float>(p.problem().scale());
    return {.q = x.parts[0],
            .k = x.parts[1],
            .v = x.parts[2],
            .out = ctx.empty({p.tokens(), p.heads, p.dim}, p.dtype),
            .lse = ctx.empty({p.heads, p.tokens()}),
            .queries = p.spans(),
            .keys = p.spans(),
            .scale = scale,
            .pattern = p.pattern,
            .carry = {},
            .selection = select_blocks(p.pattern, x.parts[0], x.parts[1], scale, p.spans(), ctx)};
  }

 private:
  void run(const GpuProblem& p, const ExecContext& base, int layers, Result& r) const {
    ExecContext ctx = base;
    const auto names = std::make_shared<ChosenNames>();
    ctx.observer = names;
    const AttentionInputs in = gpu_inputs(p);
    GpuOperands x(p, p.dtype, ctx), d(p, p.dtype, ctx);
    x.write(in, ctx);
    const Attention f = forward_of(p, x, ctx);
    const AttentionBackward b{.q = f.q,
                              .k = f.k,
                              .v = f.v,
                              .out = f.out,
                              .lse = f.lse,
                              .dout = upload(in.dout, f.out.shape(), p.dtype, ctx),
                              .dq = d.parts[0],
                              .dk = d.parts[1],
                              .dv = d.parts[2],
                              .queries = f.queries,
                              .keys = f.keys,
                              .scale = f.scale,
                              .pattern = f.pattern,
                              .carry_dq = {},
                              .carry_dk = {},
                              .carry_dv = {},
                              .selection = f.selection};
    for (int layer = 0; layer < layers; ++layer) {
      const std::uint64_t before = host_wait_count();
      attention_kernel(f, ctx);
      attention_backward_kernel(b, ctx);
      // Lists of a rule are built at their first use. The host may then wait for their length.
      if (layer > 0 || !p.pattern.blocks || p.pattern.selects()) r.waits += host_wait_count() - before;
    }
    r.names.insert(r.names.end(), names->seen.begin(), names->seen.end());
    r.values.push_back({download(f.out, ctx), download(f.lse, ctx), d.read(0, ctx), d.read(1, ctx), d.read(2, ctx)});
  }

  std::filesystem::path path_;
};

TEST_F(GpuAttentionChoice, RunsWithOneFileChooseTheSame) {
  const Result measures = run(exec(), 2), again = run(exec(), 2);
  EXPECT_EQ(again.names, measures.names);
  EXPECT_EQ(again.values, measures.values);
  EXPECT_EQ(again.choices, measures.choices);
  EXPECT_EQ(again.waits, 0u) << "the host waited although every choice was known";
}

TEST_F(GpuAttentionChoice, LayersShareOne) {
  const Result r = run(exec(), 3);
  for (std::size_t i = 0; i < r.names.size(); ++i) EXPECT_EQ(r.names[i], r.names[i / 6 * 6 + i % 2]) << "call " << i;
}

// Measuring before a call leaves the results of the chosen kernel.
TEST_F(GpuAttentionChoice, MeasuringHarmsNoResults) {
  const Result measures = run(exec());
  for (std::size_t i = 0; i < patterns().size(); ++i) {
    const GpuProblem p = problem(patterns()[i]);
    if (p.pattern.selects()) continue;                                 // run_gpu takes no selection
    if (measures.names[2 * i] != measures.names[2 * i + 1]) continue;  // run_gpu runs one kernel for both directions
    EXPECT_EQ(run_gpu(measures.names[2 * i], p, gpu_inputs(p)), measures.values[i]) << measures.names[2 * i];
  }
}

// Tensor-core kernels are compared if a device has several, forward and backward.
TEST_F(GpuAttentionChoice, BlocksOfRulesAndSelectedOnesAreMeasured) {
  const std::string choices = run(exec()).choices;
  for (const Pattern& pattern : patterns()) {
    if (!pattern.blocks) continue;
    const GpuProblem p = problem(pattern);
    const ExecContext ctx = exec();
    GpuOperands x(p, p.dtype, ctx);
    x.write(gpu_inputs(p), ctx);
    const Attention a = forward_of(p, x, ctx);
    std::string names;
    for (const auto& c : attention_kernel.candidates(Backend::cuda))
      if (c.priority > 0 && c.supports(a, ctx)) names += str(names.empty() ? "" : "|", c.name);
    if (names.find('|') == std::string::npos) continue;  // there is nothing to compare
    for (const char* slot : {"attention, ", "attention_backward, "})
      EXPECT_NE(choices.find(
                    str('"', slot, ctx.stream.impl().device_name(), ", ", names, ", deterministic, ", choice_key(a))),
                std::string::npos)
          << slot << names << ", " << pattern_key(pattern) << " is not in\n"
          << choices;
  }
}

TEST_F(GpuAttentionChoice, NothingIsMeasuredWhileWorkIsRecorded) {
  const ExecContext ctx = exec();
  EXPECT_FALSE(ctx.stream.impl().recording());
  const GpuProblem p = problem(window(200));
  GpuOperands x(p, p.dtype, ctx);
  x.write(gpu_inputs(p), ctx);
  const Attention a = forward_of(p, x, ctx);
  const std::string first(attention_kernel.first(a, ctx).name);  // creates the kernel's plans
  std::string recorded;
  const std::uint64_t before = host_wait_count();
  const auto work = ctx.stream.impl().record_work([&] {
    EXPECT_TRUE(ctx.stream.impl().recording());
    recorded = attention_kernel.choose(a, ctx).name;
    fill_zero(a.lse, ctx.stream);
  });
  EXPECT_EQ(recorded, first);
  EXPECT_EQ(attention_kernel.choose(a, ctx).name, recorded);
  EXPECT_EQ(host_wait_count(), before);
}

}  // namespace
}  // namespace ring::test
