// Steps that are captured and replayed: work of other streams for earlier steps has joined before.
#include "engine/step_graph.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/host_node.h"
#include "core/host_node_queue.h"
#include "core/tensor.h"
#include "tests/late_stream.h"

namespace ring::test {
namespace {

using Words = std::vector<std::string>;

// Works like a CUDA stream: captured work can be queued again.
class RecordingStream final : public LateStream {
 public:
  explicit RecordingStream(Words& said) : said_(said) { allocator = Stream::cpu(1).allocator(); }
  std::unique_ptr<RecordedWork> record_work(const std::function<void()>& work) override {
    said_.emplace_back("record");
    auto recorded = std::make_unique<Recorded>(said_);
    HostNodeQueue& queue = resource<HostNodeQueue>();
    queue.in_launches = [&](std::function<void()> anew) { recorded->anew.push_back(std::move(anew)); };
    work();
    queue.in_launches = nullptr;
    return recorded;
  }

 private:
  struct Recorded final : RecordedWork {
    explicit Recorded(Words& s) : said(s) {}
    void launch() override {
      said.emplace_back("replay");
      for (const auto& work : anew) work();
    }
    Words& said;
    std::vector<std::function<void()>> anew;
  };
  Words& said_;
};

TEST(StepGraph, OtherStreamsJoinBeforeACaptureAndReplays) {
  Words said;
  const Stream stream(std::make_shared<RecordingStream>(said));
  const auto arena = std::make_shared<StepArena>(stream.impl().allocator);
  const StepMemory memory(stream, arena);
  StepGraph graph(Switch::on, stream, arena);
  const auto run = [&](bool watched) {
    said.clear();
    const auto step = [&] {
      Tensor::empty({1000}, DType::f32, stream);
      said.emplace_back("step");
    };
    graph.run_or_replay(
        step, [&] { said.emplace_back("join"); }, watched);
  };
  for (int i = 0; i < 10 && !graph.replays(); ++i) {
    EXPECT_EQ(said, i > 0 ? Words{"step"} : Words{}) << "nothing has to join";
    run(false);
  }
  EXPECT_EQ(said, (Words{"join", "record", "step", "replay"}));
  run(false);
  EXPECT_EQ(said, (Words{"join", "replay"}));
  run(true);
  EXPECT_EQ(said, Words{"step"});
}

// Several processes replay a step only if all can. A process whose slab had to be freed cannot.
TEST(StepGraph, IsNotReadyOnceTheMemoryOfItsStepsWasFreed) {
  Words said;
  const Stream stream(std::make_shared<RecordingStream>(said));
  const auto arena = std::make_shared<StepArena>(stream.impl().allocator);
  const StepMemory memory(stream, arena);
  StepGraph graph(Switch::on, stream, arena);
  const auto run = [&] { graph.run_or_replay([&] { Tensor::empty({1000}, DType::f32, stream); }, [] {}); };
  for (int i = 0; i < 10 && !graph.replays(); ++i) run();
  ASSERT_TRUE(graph.replays());
  EXPECT_TRUE(graph.ready());
  EXPECT_THROW(Tensor::empty({std::int64_t{1} << 50}, DType::f32, stream), OutOfMemory);
  EXPECT_FALSE(graph.ready());
  run();
  EXPECT_FALSE(graph.replays());
}

// A step contains work whose size differs from step to step. The plan has no memory for this work, whether steps are
// launched or replayed.
class StepInParts : public testing::Test {
 protected:
  void run(std::int64_t size) {
    said.clear();
    graph.run_or_replay(
        [&] {
          const Tensor kept = Tensor::empty({1000}, DType::f32, stream);
          queue_host_node(stream, [this, place = kept.raw()] { run_varying_work(place); });
          const Tensor other = Tensor::empty({500}, DType::f32, stream);
          said.emplace_back("step");
        },
        [] {});
    EXPECT_EQ(arena->stats().in_use, 0u) << "of size " << size;
  }
  void run_varying_work(const std::byte* place) {
    said.push_back(str("anew ", size_now));
    const Tensor scratch = Tensor::empty({size_now}, DType::f32, stream), more = Tensor::empty({7}, DType::f32, stream);
    addresses.push_back(place);
    EXPECT_TRUE(!graph.replays() || scratch.raw() < place || scratch.raw() >= place + 6144) << "in the step's memory";
  }
  void run_sizes(int count) {
    for (int i = 0; i < count; ++i) run(size_now = 100 + 10 * i);
  }

  Words said;
  std::int64_t size_now = 0;
  std::vector<const std::byte*> addresses;  // addresses that the step keeps, in the order of calls
  const Stream stream{std::make_shared<RecordingStream>(said)};
  const std::shared_ptr<StepArena> arena = std::make_shared<StepArena>(stream.impl().allocator);
  const StepMemory memory{stream, arena};
  StepGraph graph{Switch::on, stream, arena, true};
};

TEST_F(StepInParts, IsQueuedAgainInEachReplay) {
  run_sizes(10);
  EXPECT_TRUE(graph.replays());
  EXPECT_EQ(said, (Words{"replay", "anew 190"}));
  EXPECT_EQ(addresses.size(), 10u) << "once in each step, and never by the recording itself";
  EXPECT_EQ(addresses[9], addresses[5]);
  EXPECT_EQ(arena->generation(), 1u);
  EXPECT_EQ(arena->plan().bytes, 6144u) << "what is queued anew is none of it";
}

TEST_F(StepInParts, KeepsTheSlabIfMemoryRunsOutInAReplay) {
  run_sizes(10);
  ASSERT_TRUE(graph.replays());
  size_now = std::int64_t{1} << 50;
  EXPECT_THROW(run(size_now), OutOfMemory);
  EXPECT_TRUE(arena->has_slab());
  run(size_now = 5);
  EXPECT_EQ(said, (Words{"replay", "anew 5"}));
  EXPECT_EQ(addresses.back(), addresses[9]);
}

// Steps that are not replayed keep their plan, and thus the memory that was predicted.
TEST_F(StepInParts, IsPlannedWithTheStepUntilStepsAreReplayed) {
  StepGraph undecided(Switch::automatic, stream, arena, true);
  const auto run = [&](double launching) {
    undecided.run_or_replay(
        [&] { queue_host_node(stream, [&] { const Tensor scratch = Tensor::empty({1000}, DType::f32, stream); }); },
        [] {});
    undecided.on_step_timed(launching, 1);
  };
  for (int i = 0; i < 5; ++i) run(0.1);
  EXPECT_EQ(arena->plan().bytes, 4096u);
  for (int i = 0; i < 8; ++i) run(i < 3 ? 0.9 : 0.1);
  EXPECT_TRUE(arena->excludes_host_nodes());
  EXPECT_EQ(arena->plan().bytes, 0u);
}

}  // namespace
}  // namespace ring::test
