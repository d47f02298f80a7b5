// State that training changes in addition to a model's parameters. This one counts steps, and the rows of passes before
// them. Only this file knows it, and still it is saved, resumed, and the same on several ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/state.h"
#include "comm/gloo/gloo.h"
#include "comm/host.h"
#include "comm/mesh/mesh.h"
#include "kernels/kernel.h"
#include "model/architectures.h"
#include "model/decoder.h"
#include "model/scopes.h"
#include "model/training_state.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

// [2] f32 on the host: steps, and rows of the passes before them, over all ranks.
class SeenRows final : public TrainingState {
 public:
  explicit SeenRows(Model& model) : model_(model) { counts(0) = counts(1) = 0; }

  void attach(const StepAccess& step) override { step_.emplace(step); }
  bool before_step(std::int64_t step) override {
    if (copies_) std::exchange(copies_, std::nullopt)->synchronize();
    double rows = 0;
    model_.watch = [&](const ScopeId& part, const Tensor& t) {
      if (part.kind == scopes::final_norm) rows += static_cast<double>(t.dim(0));
    };
    step_->forward();
    model_.watch = nullptr;
    counts(0) = static_cast<float>(step);
    counts(1) += static_cast<float>(sum_host(step_->mesh.host(), rows));
    return true;
  }

  const char* prefix() const override { return "toy."; }
  void add_to(State& state) override { state.add("toy.counts", counts_); }
  void prepare_for_copy(const Stream& copies) override { copies_ = copies; }
  void begin(const std::vector<std::string>& missing) override {
    if (!missing.empty()) counts(0) = counts(1) = 0;
  }
  bool on_state_loaded() override { return false; }
  std::string missing_text() const override { return "nothing was counted"; }
  std::string unexpected_text() const override { return "counts are left out"; }
  std::string load(const std::string&, const Manifest& manifest, const ModelConfig& saved) override {
    counts(1) = manifest.tensors.contains("toy.counts") ? static_cast<float>(saved.layers) : NAN;
    return "";
  }

 private:
  float& counts(std::int64_t i) { return counts_.data<float>()[i]; }

  Model& model_;
  std::optional<StepAccess> step_;
  std::optional<Stream> copies_;
  Tensor counts_ = Tensor::empty({2}, DType::f32, Stream::cpu(1), Lifetime::run);
};

class CountingDecoder final : public Decoder {
 public:
  using Decoder::Decoder;
  std::vector<TrainingState*> training_states() override {
    std::vector<TrainingState*> all = Decoder::training_states();
    all.push_back(&seen_);
    return all;
  }

 private:
  SeenRows seen_{*this};
};

class DistToyTrainingState : public testing::Test {
 protected:
  void SetUp() override {
    add_architecture("counting", [](const ModelConfig& c, std::int64_t padding) {
      return std::make_unique<CountingDecoder>(c, padding);
    });
  }
  void TearDown() override {
    remove_architecture("counting");
    std::filesystem::remove_all(folder_);
  }
  static TrainingOptions options(int steps, const char* architecture = "counting") {
    TrainingOptions o;
    o.steps = steps;
    o.overrides = {str("model.architecture=", architecture), "model.context=64", "train.batch_size=4",
                   "train.micro_batch=2"};
    return o;
  }
  static Training trained(const TrainingOptions& o) {
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  static std::vector<float> counts(const Training& t) { return t.tensors.at("toy.counts"); }

  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-toy-state-" + std::to_string(getpid()))).string();
};

constexpr float kRows = 2 * 64;  // of a micro-batch

TEST_F(DistToyTrainingState, ChangesInStepsWithoutAffectingThem) {
  const Training counting = trained(options(4)), plain = trained(options(4, "decoder"));
  EXPECT_EQ(counts(counting), (std::vector<float>{4, 4 * kRows}));
  EXPECT_EQ(counting.losses, plain.losses);
  for (const auto& [name, values] : plain.tensors) EXPECT_EQ(values, counting.tensors.at(name)) << name;
}

TEST_F(DistToyTrainingState, IsSavedAndResumed) {
  TrainingOptions first = options(2), rest = options(2), plain = options(2, "decoder"), weights = options(1);
  first.save = folder_ + "/first";
  rest.load = weights.load = trained(first).checkpoint;
  EXPECT_EQ(counts(trained(rest)), (std::vector<float>{4, 4 * kRows}));
  weights.init_from = true;
  EXPECT_EQ(counts(trained(weights)), (std::vector<float>{1, 2 + kRows})) << "of a model with 2 layers";
  plain.save = folder_ + "/plain";
  rest.load = trained(plain).checkpoint;
  EXPECT_EQ(counts(trained(rest)), (std::vector<float>{4, 2 * kRows})) << "no checkpoint of a decoder has it";
}

// train_on_ranks() reports an error if ranks differ.
TEST_F(DistToyTrainingState, IsTheSameOnTwoRanks) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  for (const char* layout : {"parallel.cp=2", "parallel.tp=2"}) {
    TrainingOptions o = options(3);
    o.ranks = 2;
    o.overrides.emplace_back(layout);
    EXPECT_EQ(counts(trained(o)), (std::vector<float>{3, 3 * kRows})) << layout;
  }
}

}  // namespace
}  // namespace ring::test
