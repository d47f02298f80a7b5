// Rounded messages between GPUs, against those between CPUs.

#include "tests/comm/gpu_ranks.h"
#include "tests/parallel/context_messages.h"

namespace ring::test {
namespace {

class GpuDistContextMessages : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "fewer than two GPUs";
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// f32 operands have the same codes on both. Gradients that differ in the last bits may round to neighbouring numbers,
// up to 2^-7 apart, which happens to few of them.
TEST_F(GpuDistContextMessages, AreThoseOfCpus) {
  const MessageHeads heads{4, 2, 64, 0.125f};
  for (const Pattern& pattern : {dense(), window(37, 3)}) {
    const ContextCase c{"", pattern, 512, 2, documents_of(512, 2, {70, 1, -9, 150, 3, -40, 90})};
    const MessageOperands of = random_message_operands(c.tokens(), heads);
    const ContextLayout layout(ContextLayoutKind::zigzag, c.length, 2);
    std::vector<MessageWay> ways;
    for (const char* name : {"ring", "ring_by_heads", "gather"})
      for (const ContextMessages m : {ContextMessages::exact, ContextMessages::bf16, ContextMessages::fp8})
        ways.push_back(way_of(name, m));
    std::vector<MessageResults> cpus(ways.size()), gpus(ways.size());
    std::mutex mutex;
    const auto run = [&](Communicator& comm, const Stream& stream, std::vector<MessageResults>& results) {
      const ExecContext ctx{stream};
      const auto shards = std::make_shared<const ContextShards>(layout.shards(comm.rank(), c.rows, c.documents));
      for (std::size_t i = 0; i < ways.size(); ++i)
        run_way(ways[i], c, heads, of, shards, comm, ctx, results[i], mutex);
    };
    EXPECT_EQ(joined(run_ranks(2, [&](Communicator& comm) { run(comm, Stream::cpu(1), cpus); })), "");
    EXPECT_EQ(joined(run_gpu_ranks(2, [&](Communicator& comm, const Stream& s) { run(comm, s, gpus); })), "");
    for (std::size_t i = 0; i < ways.size(); ++i) {
      SCOPED_TRACE(str("way ", i, ", ", to_string(ways[i].messages), " messages"));
      EXPECT_EQ(gpus[i].sent, cpus[i].sent);
      EXPECT_LE(relative_distance(gpus[i].out, cpus[i].out), 1e-5);
      EXPECT_LE(relative_distance(gpus[i].dq, cpus[i].dq), 1e-5);
      const double rounding = ways[i].messages == ContextMessages::exact ? 1e-5 : 3e-4;
      EXPECT_LE(relative_distance(gpus[i].dk, cpus[i].dk), rounding);
      EXPECT_LE(relative_distance(gpus[i].dv, cpus[i].dv), rounding);
    }
  }
}

}  // namespace
}  // namespace ring::test
