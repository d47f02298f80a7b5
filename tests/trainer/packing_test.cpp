// Training on packed documents.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "core/philox.h"
#include "engine/devices.h"
#include "evaluate/evaluate.h"
#include "evaluate/session.h"
#include "kernels/cross_entropy.h"
#include "model/decoder.h"
#include "tests/paths.h"
#include "tests/process.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// Makes a corpus of documents with very different lengths in a folder.
class Packing : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ringmaster-packing-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    write_documents(path("a.h5"), 150, 30, [](std::uint64_t d) {
      return random_bits({7, 0, 0}, d) % (d % 5 ? 20 : 90);
    });
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  Corpora corpora() const { return open_corpus(path("a.h5")); }
  static LoaderOptions options(std::int64_t align, std::int64_t rows) {
    LoaderOptions o{.context = tiny_config().model.context, .rows = rows, .seed = 3, .prefetch = 0};
    o.packing = {true, align};
    return o;
  }
  fs::path folder_;
};

std::vector<std::int32_t> part(const std::vector<std::int32_t>& all, std::int32_t first, std::int32_t count) {
  return {all.begin() + first, all.begin() + first + count};
}

// A kind of attention, and the alignment at which documents in a row give the same results as each document alone.
struct Kind {
  AttentionConfig attention;
  std::int64_t align;
};

std::vector<Kind> kinds() {
  return {{{}, 1},
          {{}, 8},
          {{.kind = "window", .window = 5, .sinks = 2}, 1},
          {{.kind = "dilated", .segments = {4, 16}, .rates = {1, 2}}, 16}};
}

// The losses of all tokens and the gradients equal those of the batch's documents one by one.
TEST_F(Packing, EqualsSeparateDocuments) {
  const ExecContext ctx{Stream::cpu(2)};
  for (const auto& [attention, align] : kinds()) {
    Config config = tiny_config();
    config.model.attention = attention;
    Loader loader(corpora(), options(align, 4));
    Decoder model(config.model);
    model.allocate(ctx, 5);
    Parameters& params = model.parameters();
    for (int round = 0; round < 3; ++round) {
      const Batch b = loader.next();
      const auto pass = [&](const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
                            const Sequences& seqs) {
        Tape tape(true);
        ring::Run run{ctx, &tape};
        LossHead head;
        head.targets = from_host(targets, ctx.stream);
        const LossOutput out = model.loss(run, from_host(ids, ctx.stream), seqs, head);
        const std::vector<float> losses = to_host<float>(out.token_loss, ctx.stream);
        tape.backward(out.sum.slot, {}, ctx);
        return losses;
      };
      params.start_step();
      const std::vector<float> packed = pass(b.inputs, b.targets, sequences_of(b, config.model.context, ctx));
      const std::vector<float> gradients = to_host<float>(params.gradients, ctx.stream);
      std::vector<double> alone(gradients.size(), 0);
      std::vector<float> losses(packed.size(), 0);
      for (std::size_t d = 0; d < b.starts.size(); ++d) {
        params.start_step();
        const std::vector<float> one =
            pass(part(b.inputs, b.starts[d], b.lengths[d]), part(b.targets, b.starts[d], b.lengths[d]),
                 Sequences::uniform(1, b.lengths[d], ctx));
        std::copy(one.begin(), one.end(), losses.begin() + b.starts[d]);
        const std::vector<float> more = to_host<float>(params.gradients, ctx.stream);
        for (std::size_t i = 0; i < more.size(); ++i) alone[i] += more[i];
      }
      for (std::size_t t = 0; t < packed.size(); ++t) EXPECT_NEAR(packed[t], losses[t], 1e-5) << "token " << t;
      double largest = 0, difference = 0;
      for (std::size_t i = 0; i < alone.size(); ++i) {
        largest = std::max(largest, std::abs(alone[i]));
        difference = std::max(difference, std::abs(alone[i] - gradients[i]));
      }
      EXPECT_GT(largest, 0.1);
      EXPECT_LT(difference, 2e-6 * largest);
    }
  }
}

TEST_F(Packing, EvaluationAveragesOverDocuments) {
  const Config config = tiny_config();
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(config.model);
  model.allocate(ctx, 5);
  const auto mesh = mesh_of_one();
  double want = 0;
  std::int64_t tokens = 0;
  const ValidationSet rows(corpora(), options(8, 1));
  for (std::int64_t i = 0; i < rows.batches(); ++i) {
    const Batch b = rows.batch(i);
    for (std::size_t d = 0; d < b.starts.size(); ++d) {
      ring::Run run{ctx};
      LossHead head;
      head.targets = from_host(part(b.targets, b.starts[d], b.lengths[d]), ctx.stream);
      const Tensor ids = from_host(part(b.inputs, b.starts[d], b.lengths[d]), ctx.stream);
      want +=
          to_host<float>(model.loss(run, ids, Sequences::uniform(1, b.lengths[d], ctx), head).sum.value, ctx.stream)[0];
      for (std::int32_t t : to_host<std::int32_t>(head.targets, ctx.stream)) tokens += t != kIgnoreTarget;
    }
  }
  for (const std::int64_t batch : {1, 3, 8}) {
    const Evaluation e = evaluate(model, ctx, ValidationSet(corpora(), options(8, batch)), mesh->host());
    EXPECT_EQ(e.tokens, tokens);
    EXPECT_NEAR(e.loss, want / static_cast<double>(tokens), 1e-6);
  }
}

// Expects the same losses for every division of the step into micro-batches. The host must never wait inside a step,
// which a GPU replays.
void expect_steps(const Corpora& corpora, const LoaderOptions& given, DeviceChoice device) {
  std::vector<double> first;
  for (const std::int64_t rows : {8, 4, 1}) {
    Config config = tiny_config();
    config.run.device = device;
    config.train.precision = PrecisionChoice::fp32;
    config.train.micro_batch = rows;
    config.train.cuda_graph = Switch::on;
    config.data.packing = given.packing;
    config.schedule.warmup_steps = 1;
    config = resolve_config(config, 257);
    const ExecContext ctx = make_exec_context(config);
    const auto mesh = mesh_of_one();
    LoaderOptions options = given;
    options.rows = rows;
    Loader loader(corpora, options);
    Trainer trainer(config, ctx, *mesh, loader);
    std::vector<double> losses;
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t waits = host_wait_count();
      trainer.launch();
      if (i >= 5) {
        EXPECT_EQ(host_wait_count(), waits) << "the host waited in step " << i;
      }
      const StepReport r = trainer.finish();
      EXPECT_TRUE(r.accepted);
      losses.push_back(r.loss);
    }
    EXPECT_EQ(trainer.replays_graph(), device == DeviceChoice::cuda);
    if (first.empty()) first = losses;
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], first[i], 1e-5 * first[i]) << rows;
    EXPECT_LT(losses.back(), losses.front());
  }
}

TEST_F(Packing, MicroBatchesDoNotChangeTheLoss) {
  for (const std::int64_t align : {1, 8}) expect_steps(corpora(), options(align, 8), DeviceChoice::cpu);
}

class GpuPacking : public Packing {};
TEST_F(GpuPacking, MicroBatchesDoNotChangeTheLoss) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  for (const std::int64_t align : {1, 8}) expect_steps(corpora(), options(align, 8), DeviceChoice::cuda);
}

// Runs of the program.
class PackedRuns : public Packing {
 protected:
  std::vector<std::string> train(const std::string& run, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {ring_binary(),
                                    "train",
                                    source_dir() + "/configs/nanogpt_cpu.yaml",
                                    "run.directory=" + path(run),
                                    "run.device=cpu",
                                    "data.path=" + path("a.h5"),
                                    "data.packing.documents=true",
                                    "data.packing.align=8",
                                    "run.threads=1",
                                    "model.context=32",
                                    "model.width=32",
                                    "model.layers=2",
                                    "model.dropout=0.1",
                                    "train.steps=30",
                                    "train.batch_size=4",
                                    "train.micro_batch=1",
                                    "train.log_interval=1",
                                    "train.eval_interval=10",
                                    "checkpoint.interval=10"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::map<int, double> losses(const std::string& run, const std::string& group = "train") const {
    std::map<int, double> out;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.at("group") == group) out[json.at("step").get<int>()] = json.at("loss").get<double>();
    }
    return out;
  }
  nlohmann::json tensors(const std::string& run) const {
    std::ifstream file(folder_ / run / "checkpoints/step-000000030/manifest.json");
    return nlohmann::json::parse(file).at("tensors");
  }
  void expect_resumes(const std::vector<std::string>& settings) const {
    ASSERT_EQ(run_process(train("whole", settings)).code, 0);
    ASSERT_EQ(run_process(train("cut", settings)).code, 0);
    fs::remove_all(folder_ / "cut/checkpoints/step-000000030");  // as if the run had been killed just before
    const Finished resumed = run_process(train("cut", settings));
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_NE(resumed.output.find("resuming from step 20"), std::string::npos) << resumed.output;
    EXPECT_EQ(losses("cut"), losses("whole"));
    EXPECT_EQ(losses("cut").size(), 30u);
    EXPECT_EQ(tensors("cut"), tensors("whole"));
  }
};

const std::vector<std::string> kBestFit = {"data.packing.align=1", "data.packing.best_fit=64"};

TEST_F(PackedRuns, RunsWithBestFitResumeBitForBit) {
  expect_resumes(kBestFit);
  const Finished refused = run_process(train("cut", {"data.packing.align=1", "data.packing.best_fit=65"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("data.packing.best_fit: 64 -> 65"), std::string::npos) << refused.output;
}

TEST_F(PackedRuns, ResumeBitForBitAndRefuseDifferentPacking) {
  expect_resumes({});
  const Finished refused = run_process(train("cut", {"data.packing.align=4"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("data.packing.align: 8 -> 4"), std::string::npos) << refused.output;
  const Finished evaluated = run_process({ring_binary(), "eval", path("whole"), "--json", "--device", "cpu"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.output;
  EXPECT_NEAR(nlohmann::json::parse(evaluated.output).at("loss").get<double>(), losses("whole", "validation").at(30),
              1e-5);
}

// On a CPU no graph is captured, but attention uses the memory that it uses in captured steps.
TEST_F(PackedRuns, HaveTheSameLossesIfStepsAreToBeReplayed) {
  for (const char* graph : {"off", "on"}) {
    const Finished f = run_process(train(graph, {str("train.cuda_graph=", graph)}));
    ASSERT_EQ(f.code, 0) << f.output;
  }
  EXPECT_EQ(losses("off").size(), 30u);
  EXPECT_EQ(losses("on"), losses("off"));
  EXPECT_EQ(tensors("on"), tensors("off"));
}

TEST_F(PackedRuns, WarnIfSegmentsAreNotAligned) {
  const auto dilated = [&](const char* run, const char* align) {
    return run_process(train(run, {"model.attention.kind=dilated", "model.attention.segments=[8,16]",
                                   "model.attention.rates=[1,2]", "train.steps=1", align}))
        .output;
  };
  const std::string warned = dilated("warned", "data.packing.align=8");
  for (const char* part : {"data.packing.align: 8", "multiple of 16"})
    EXPECT_NE(warned.find(part), std::string::npos) << warned;
  const std::string silent = dilated("silent", "data.packing.align=16");
  EXPECT_EQ(silent.find("multiple of 16"), std::string::npos) << silent;
}

class DistPackedRuns : public PackedRuns {};
TEST_F(DistPackedRuns, TwoProcessesReachTheLossesOfOne) {
  for (std::vector<std::string> settings : {std::vector<std::string>{}, kBestFit}) {
    settings.push_back("train.bucket_bytes=4096");
    std::map<int, double> one;
    for (const char* processes : {"1", "2"}) {
      const std::string run = str(processes, "_", settings.size());
      std::vector<std::string> command = train(run, settings);
      command.insert(command.begin() + 1, {"launch", "--nproc-per-node", processes, "--"});
      const Finished f = run_process(command);
      ASSERT_EQ(f.code, 0) << f.output;
      const std::map<int, double> now = losses(run);
      ASSERT_EQ(now.size(), 30u);
      if (one.empty()) one = now;
      for (const auto& [step, loss] : one) EXPECT_NEAR(now.at(step), loss, 1e-5 * loss) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace ring::test
