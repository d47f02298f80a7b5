// Two runs of the same training are compared, one kernel call at a time.
#include "tests/bench/kernel_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "bench/step.h"
#include "core/fields.h"
#include "kernels/tuning.h"
#include "tests/paths.h"

namespace ring::test {
namespace {

struct TracedRun {
  std::vector<TracedCall> calls;  // empty if the run was not watched
  std::vector<double> losses, norms;
};

class KernelTraces {
 public:
  explicit KernelTraces(std::vector<std::string> settings)
      : folder_(std::filesystem::temp_directory_path() / ("ringmaster-traces-" + std::to_string(getpid()))),
        settings_(std::move(settings)) {
    std::filesystem::create_directories(folder_);
    for (const char* s : {"model.width=128", "model.vocab_size=300", "model.dropout=0.1", "train.batch_size=8",
                          "train.micro_batch=4", "train.steps=1000", "schedule.warmup_steps=2"})
      settings_.emplace_back(s);
    settings_.push_back("run.tuning=" + (folder_ / "tuning.yaml").string());
  }
  ~KernelTraces() { std::filesystem::remove_all(folder_); }
  KernelTraces(const KernelTraces&) = delete;
  KernelTraces& operator=(const KernelTraces&) = delete;

  TracedRun run(int steps, bool watched) const {
    Config config;
    load_config(config, source_dir() + "/configs/nanogpt_cpu.yaml", settings_);
    StepBenchmark bench(config);
    TracedRun result;
    const auto train = [&] {
      for (int i = 0; i < steps; ++i) {
        const StepReport r = bench.trainer().step();
        result.losses.push_back(r.loss);
        result.norms.push_back(r.norm);
      }
    };
    if (watched) {
      const KernelTrace trace(bench.trainer());
      train();
      result.calls = trace.calls();
    } else {
      train();
    }
    return result;
  }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> settings_;
};

void expect_same(const TracedRun& a, const TracedRun& b, const std::string& what) {
  EXPECT_EQ(first_difference(a.calls, b.calls), "") << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
}

// A watched run waits for each kernel and fills memory with NaN. Neither may change a number.
void expect_repeatable(const std::vector<std::string>& settings, int steps, const std::string& what) {
  const KernelTraces traces(settings);
  traces.run(1, false);  // measures kernels and fills the store
  const TracedRun first = traces.run(steps, true), second = traces.run(steps, true), plain = traces.run(steps, false);
  ASSERT_GT(first.calls.size(), 100u) << what;
  expect_same(first, second, what);
  EXPECT_EQ(first.losses, plain.losses) << what << ": kernels read what they did not write, or race";
  EXPECT_EQ(first.norms, plain.norms) << what << ": kernels read what they did not write, or race";
}

TEST(KernelTrace, EveryCallGivesTheSameBits) {
  expect_repeatable({"run.device=cpu", "run.threads=2", "model.context=32", "model.layers=2"}, 2, "cpu");
}

TEST(GpuKernelTrace, EveryCallGivesTheSameBits) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  for (const std::string precision : {"bf16", "fp32", "tf32"})
    expect_repeatable({"run.device=cuda", "model.context=128", "model.layers=3", "train.precision=" + precision}, 4,
                      precision);
}

TEST(KernelTrace, NamesTheFirstCallThatDiffers) {
  const TracedBlock weights{"weights", 0, 64, 0, 1}, block{"", 3, 256, 0, 2};
  const std::vector<TracedCall> a{{"embed packs f32[2]", {weights, block}}, {"matmul library f32[2]", {weights}}};
  EXPECT_EQ(first_difference(a, a), "");
  std::vector<TracedCall> b = a;
  b[0].blocks[1].hash = 7;
  EXPECT_EQ(first_difference(a, b),
            "call 1 of 2, embed packs f32[2]: other bits in block 3 (256 bytes, taken before call 1)");
  b = a;
  b[1].blocks[0].hash = 7;
  EXPECT_EQ(first_difference(a, b), "call 2 of 2, matmul library f32[2]: other bits in weights");
  b = a;
  b[1].text = "axpby packs f32[2]";
  EXPECT_EQ(first_difference(a, b), "call 2 of 2, matmul library f32[2], is axpby packs f32[2] in the other run");
  b = a;
  b[1].blocks.push_back(block);
  EXPECT_EQ(first_difference(a, b), "call 2 of 2, matmul library f32[2]: 1 and 2 blocks of memory");
  b = a;
  b.pop_back();
  EXPECT_EQ(first_difference(a, b), "2 and 1 calls");
}

}  // namespace
}  // namespace ring::test
