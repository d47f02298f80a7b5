// Steps that are recorded and replayed: what other streams still do for the steps before has joined by then.
#include "engine/step_graph.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/tensor.h"
#include "tests/late_stream.h"

namespace ring::test {
namespace {

using Words = std::vector<std::string>;

// As a CUDA stream: work becomes something that can be queued again.
class RecordingStream final : public LateStream {
 public:
  explicit RecordingStream(Words& said) : said_(said) { allocator = Stream::cpu(1).allocator(); }
  std::unique_ptr<RecordedWork> record_work(const std::function<void()>& work) override {
    said_.emplace_back("record");
    work();
    return std::make_unique<Recorded>(said_);
  }

 private:
  struct Recorded final : RecordedWork {
    explicit Recorded(Words& s) : said(s) {}
    void launch() override { said.emplace_back("replay"); }
    Words& said;
  };
  Words& said_;
};

TEST(StepGraph, WhatRunsBesideJoinsAheadOfARecordingAndOfReplays) {
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
    graph.run(
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

}  // namespace
}  // namespace ring::test
