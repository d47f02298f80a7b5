// A new format of linear layers is a class and a name. This one rounds weights to a grid whose step follows a running
// mean of the model's output: state that checkpoints hold. It is known to this file alone, and yet it trains, resumes,
// and is the same on several ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "autograd/ops.h"
#include "checkpoint/state.h"
#include "comm/gloo/gloo.h"
#include "comm/host.h"
#include "comm/mesh/mesh.h"
#include "model/linear_formats.h"
#include "model/model.h"
#include "model/scopes.h"
#include "model/training_state.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

class Grid final : public LinearFormat, public TrainingState {
 public:
  explicit Grid(Model& model) : model_(model) { mean() = 0; }

  Var apply(Run& run, const Var& x, const Param& weight, const Var& bias, const Var& residual) const override {
    Var w = weight.var;
    w.value = run.ctx.empty(weight.shape);
    if (run.ctx.stream.impl().computes()) {
      const float step = std::exp2(std::floor(std::log2(std::max(mean(), 0.25f))) - 8);
      const float* values = weight.var.value.data<float>();
      for (std::int64_t i = 0; i < w.value.numel(); ++i) w.value.data<float>()[i] = std::round(values[i] / step) * step;
    }
    return linear(run, x, w, bias, residual);
  }
  std::string misfit(const Param& weight, int) const override {
    return weight.parts[0].whole[0] == 40 ? "has the forbidden number of outputs" : "";
  }
  TrainingState* state() override { return this; }

  void attach(const StepAccess& step) override { step_.emplace(step); }
  bool before_step(std::int64_t) override {
    if (copies_) std::exchange(copies_, std::nullopt)->synchronize();
    double sum = 0, count = 0;
    model_.watch = [&](const ScopeId& part, const Tensor& t) {
      if (part.kind != scopes::final_norm) return;
      for (std::int64_t i = 0; i < t.numel(); ++i) sum += std::abs(static_cast<double>(t.data<float>()[i]));
      count += static_cast<double>(t.numel());
    };
    step_->forward();
    model_.watch = nullptr;
    const double now = sum_host(step_->mesh.host(), sum) / sum_host(step_->mesh.host(), count);
    mean() = mean() * 0.75f + static_cast<float>(now);
    return true;
  }
  const char* prefix() const override { return "grid."; }
  void add_to(State& state) override { state.add("grid.mean", mean_); }
  void prepare_for_copy(const Stream& copies) override { copies_ = copies; }
  void begin(const std::vector<std::string>& missing) override {
    if (!missing.empty()) mean() = 0;
  }
  bool on_state_loaded() override { return true; }
  std::string missing_text() const override { return "the grid begins anew"; }
  std::string unexpected_text() const override { return "the grid is left out"; }

 private:
  float& mean() const { return mean_.data<float>()[0]; }

  Model& model_;
  std::optional<StepAccess> step_;
  std::optional<Stream> copies_;
  Tensor mean_ = Tensor::empty({1}, DType::f32, Stream::cpu(1), Lifetime::run);
};

class DistToyLinearFormat : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    linear_formats()["grid"] = [](Model& model) { return std::make_unique<Grid>(model); };
  }
  void TearDown() override {
    linear_formats().erase("grid");
    std::filesystem::remove_all(folder_);
  }
  static TrainingOptions options(int steps, std::vector<std::string> more = {}) {
    TrainingOptions o;
    o.steps = steps;
    o.overrides = {"train.linears=grid", "optimizer.eps=1e-4"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  static Training trained(const TrainingOptions& o) {
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-grid-" + std::to_string(getpid()))).string();
};

TEST_F(DistToyLinearFormat, TrainsAndResumes) {
  const Training whole = trained(options(8));
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  EXPECT_GT(whole.tensors.at("grid.mean").at(0), 1);
  TrainingOptions half = options(4), rest = options(4);
  half.save = folder_;
  rest.load = trained(half).checkpoint;
  const Training second = trained(rest);
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

TEST_F(DistToyLinearFormat, EveryLayoutComputesWhatOneProcessDoes) {
  for (const std::string layout : {"parallel.cp=2", "parallel.tp=2", "parallel.zero=3", "train.recompute=full"}) {
    // The mean is measured in the first micro-batch: it has the same samples in every layout.
    const std::string rows = str("train.micro_batch=", layout == "parallel.zero=3" ? 4 : 8);
    TrainingOptions o = options(4, {layout, rows});
    o.ranks = layout.starts_with("parallel") ? 2 : 1;
    EXPECT_LT(largest_loss_difference(trained(options(4, {"train.micro_batch=8"})), trained(o)), 1e-5) << layout;
  }
}

TEST_F(DistToyLinearFormat, RefusesWeightsByName) {
  const std::string error = train_on_ranks(options(1, {"model.mlp_width=40"})).errors;
  EXPECT_NE(error.find("train.linears: grid: blocks.0.mlp.gate.weight has the forbidden number of outputs"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace ring::test
