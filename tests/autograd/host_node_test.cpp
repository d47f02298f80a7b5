// Attention in a recording follows the documents of each step: its work is queued again, on tensors that the recording
// freed.
#include "core/host_node.h"
#include "core/host_node_queue.h"

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

// Freed memory keeps its contents until the end, as the memory of a recorded step does.
class Keeping final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    blocks_.push_back(std::make_unique<std::byte[]>(bytes + 64));
    auto* const begin = blocks_.back().get();
    return begin + (64 - reinterpret_cast<std::uintptr_t>(begin) % 64);
  }
  void free(void*, std::size_t) override { ++freed; }
  MemoryStats stats() const override { return {}; }
  void reset_peak() override {}
  std::size_t taken() const { return blocks_.size(); }

  std::size_t freed = 0;

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

// A CPU stream that collects work to be queued again, and runs all other work at once.
class PartedStream final : public StreamImpl {
 public:
  PartedStream() {
    device = {Backend::cpu, 0};
    allocator = memory;
  }
  ~PartedStream() override { drop_resources(); }
  Event record() override { return {}; }
  Event record_time() override { return {}; }
  void wait(const Event&) override {}
  void synchronize() override {}
  ThreadPool* pool() override { return inner_.impl().pool(); }
  int threads() const override { return inner_.impl().threads(); }
  void copy(void* dst, const void* src, std::size_t bytes) override { inner_.impl().copy(dst, src, bytes); }
  void fill_zero(void* dst, std::size_t bytes) override { inner_.impl().fill_zero(dst, bytes); }
  bool recording() const override { return records_; }
  void record(bool on) {
    records_ = on;
    auto& in_launches = resource<HostNodeQueue>().in_launches;
    in_launches = nullptr;
    if (on) in_launches = [this](std::function<void()> work) { anew.push_back(std::move(work)); };
  }

  const std::shared_ptr<Keeping> memory = std::make_shared<Keeping>();
  std::vector<std::function<void()>> anew;

 private:
  bool records_ = false;
  Stream inner_ = Stream::cpu(2);
};

// Layouts of two rows of 12 tokens.
using Documents = std::vector<std::int32_t>;  // first token of each
const std::vector<Documents> kLayouts = {{0, 5, 12}, {0, 12, 13, 20}, {0, 1, 2, 11, 12, 23}};

Sequences sequences_of(const Documents& starts, const ExecContext& ctx) {
  Documents lengths;
  for (std::size_t i = 0; i < starts.size(); ++i)
    lengths.push_back((i + 1 < starts.size() ? starts[i + 1] : 24) - starts[i]);
  return Sequences::packed(starts, lengths, 12, ctx.zeros({24}, DType::i32));
}

struct Step {
  std::vector<Var> inputs;
  Var y;
  Values values() const {
    Values all = read_values(y.value);
    for (const Var& input : inputs) {
      const Values one = read_values(input.slot->grad);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};

Var input(const char* name, const Shape& shape, const ExecContext& ctx) {
  return {make_tensor(shape, DType::f32, random_values(name, shape.numel()), ctx), std::make_shared<GradSlot>()};
}

void backward(Tape& tape, const Step& step, const ExecContext& ctx) {
  const Shape& shape = step.y.value.shape();
  tape.backward(step.y.slot, make_tensor(shape, DType::f32, random_values("dy", shape.numel()), ctx), ctx);
}

struct PatternCase {
  const char* name;
  Pattern pattern;
  bool learned = false;  // if pools have learned weights and gates
  friend void PrintTo(const PatternCase& c, std::ostream* out) { *out << c.name; }
};

// The gradients of learned pools are copied to their destination by work that is not queued again.
Step attend(const Sequences& s, const PatternCase& c, const ExecContext& ctx) {
  SelfAttention o{.heads = 4, .kv_heads = 2, .head_dim = 8, .attention = {.scale = 0.4f, .pattern = c.pattern}};
  Step step{{input("qkv", {24, 64}, ctx)}, {}};
  if (c.learned) {
    o.pooling = input("pooling", {pool_weights_numel(c.pattern, 2, 8)}, ctx);
    o.pool_gates = input("gates", {24, 4}, ctx);
  }
  Tape tape;
  Run run{.ctx = ctx, .tape = &tape};
  step.y = self_attention(run, step.inputs[0], s, o);
  backward(tape, step, ctx);
  return step;
}

class QueuedAnew : public testing::TestWithParam<PatternCase> {};

TEST_P(QueuedAnew, AttentionFollowsTheDocumentsOfEachStep) {
  const auto stream = std::make_shared<PartedStream>();
  const ExecContext ctx{Stream(stream)};
  Sequences s = sequences_of(kLayouts[0], ctx);
  const auto now = std::make_shared<std::vector<Span>>(s.spans());
  s.current_spans = now;
  const auto held = [&] { return stream->memory->taken() - stream->memory->freed; };
  const std::size_t before = held();
  stream->record(true);
  const Step recorded = attend(s, GetParam(), ctx);
  stream->record(false);
  ASSERT_EQ(stream->anew.size(), 2u) << "forward and backward";
  const std::size_t with_recorded = held();
  for (const std::size_t layout : {1, 2, 0, 1}) {
    *now = sequences_of(kLayouts[layout], ctx).spans();
    for (const auto& work : stream->anew) work();
    EXPECT_EQ(held(), with_recorded) << "what is queued anew gives its memory back";
    const Step plain = attend(sequences_of(kLayouts[layout], ctx), GetParam(), ctx);
    EXPECT_EQ(recorded.values(), plain.values()) << "layout " << layout;
  }
  const Step plain = attend(sequences_of(kLayouts[0], ctx), GetParam(), ctx);
  EXPECT_EQ(held() - with_recorded, with_recorded - before) << "a recording holds none of a step's memory";
}

INSTANTIATE_TEST_SUITE_P(
    Patterns, QueuedAnew,
    testing::Values(PatternCase{"dense", {}}, PatternCase{"window", {.branches = {{.window = 3}}, .sinks = 1}},
                    PatternCase{"dilated", {.branches = {{4, 1}, {8, 2}}}},
                    PatternCase{"pools", {.branches = {{.window = 3}}, .pools = {4}}},
                    PatternCase{"learned_pools", {.branches = {{.window = 3}}, .pools = {3, 7}}, true}),
    [](const auto& p) { return std::string(p.param.name); });

TEST(QueuedAnewSpans, AreRefusedInARecordingIfTheyAreKept) {
  const auto stream = std::make_shared<PartedStream>();
  const ExecContext ctx{Stream(stream)};
  Sequences s = sequences_of(kLayouts[0], ctx);
  stream->record(true);
  EXPECT_EQ(s.spans_on(ctx.stream).size(), 3u) << "they are always these";
  s.current_spans = std::make_shared<std::vector<Span>>(s.spans());
  EXPECT_THROW(s.spans_on(ctx.stream), Error);
  stream->record(false);
  EXPECT_EQ(s.spans_on(ctx.stream), s.spans());
}

}  // namespace
}  // namespace ring::test
