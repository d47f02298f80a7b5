// Compares whole trainings with an independent reference: reference.py, in PyTorch and float64 (see README.md). Every
// step's loss and gradient norm and the final weights must agree. With RINGMASTER_GOLDEN_DUMP=DIR the tests instead
// write the reference's inputs into DIR/<family>/.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "data/token_store.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "tests/paths.h"
#include "text/tokenizer.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// float32 may differ from float64 by this much over 20 steps, in which rounding accumulates. README.md has the measured
// differences.
constexpr double kLossTolerance = 2e-6, kNormTolerance = 5e-6;  // relative

// relative: bound for the sum of squares, and for the other checksums in units of its root. idle: size of an element
// that does not affect the loss (a key bias without rotation), which AdamW moves by the rounding of its gradient.
struct Tolerance {
  double relative, idle;
};
constexpr Tolerance kInitial{1e-12, 0};  // the weights are equal, but the order of summation differs
constexpr Tolerance kFinal{1e-5, 1e-5};
// A GPU's logarithms and cosines sometimes differ in the last bit, and its GEMMs sum in a different order.
constexpr Tolerance kGpuInitial{1e-7, 0}, kGpuFinal{1e-4, 1e-4};
constexpr double kGpuTolerance = 1e-5;  // of losses and norms, relative

std::string read_text(const fs::path& file) {
  std::ostringstream out;
  out << std::ifstream(file).rdbuf();
  return out.str();
}

template <class T>
void write_values(const fs::path& file, const std::vector<T>& values) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
  ASSERT_TRUE(out.flush()) << file;
}

// Sums over all weights. The last sum also depends on their positions.
struct Checksum {
  double sum = 0, squares = 0, wave = 0;
  std::size_t count = 0;
};

Checksum checksum(const std::vector<float>& weights) {
  Checksum c;
  c.count = weights.size();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto w = static_cast<double>(weights[i]);
    c.sum += w;
    c.squares += w * w;
    c.wave += w * std::cos(static_cast<double>(i));
  }
  return c;
}

void expect_checksum(const Checksum& got, const Json& want, Tolerance tolerance, const std::string& what) {
  const double squares = want.at("squares").get<double>(), n = static_cast<double>(got.count);
  const double idle = squares < n * tolerance.idle * tolerance.idle ? tolerance.idle : 0;
  const double near = tolerance.relative * std::sqrt(squares) + n * idle;
  EXPECT_NEAR(got.sum, want.at("sum").get<double>(), near) << what;
  EXPECT_NEAR(got.wave, want.at("wave").get<double>(), near) << what;
  EXPECT_NEAR(got.squares, squares, tolerance.relative * squares + n * idle * idle) << what;
}

using Weights = std::vector<std::pair<std::string, std::vector<float>>>;

// Returns the logical parameters, with the names of checkpoints.
Weights weights_of(Trainer& trainer) {
  const Parameters& params = trainer.model().parameters();
  Weights out;
  for (const Param* p : params.layout())
    for (const LogicalParam& part : p->parts) {
      const Tensor rows = p->part_of(params.values, part);
      out.emplace_back(part.name, to_host<float>(rows.view({rows.numel()}), trainer.exec().stream));
    }
  return out;
}

void expect_weights(const Weights& got, const Json& want, Tolerance tolerance, const std::string& when) {
  ASSERT_EQ(got.size(), want.size()) << when << ": another number of parameters";
  for (const auto& [name, values] : got) {
    ASSERT_TRUE(want.contains(name)) << name << " is unknown to the reference";
    expect_checksum(checksum(values), want.at(name), tolerance, name + ", " + when);
  }
}

// The tokens of all steps, [steps, batch_size, context] each.
struct Tokens {
  std::vector<std::int32_t> inputs, targets;
  std::int64_t mark() const {  // a checksum that a double holds exactly
    std::int64_t sum = 0, i = 0;
    for (const auto* part : {&inputs, &targets})
      for (std::int32_t token : *part) sum += (i++ % 1009 + 1) * token;
    return sum;
  }
};

class Golden : public testing::TestWithParam<std::string> {
 protected:
  virtual std::vector<std::string> overrides() const { return {"run.device=cpu"}; }
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ringmaster-golden-" + GetParam() + "-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    write_corpus();
    Config config;
    std::vector<std::string> settings = overrides();
    settings.push_back("data.path=" + corpus().string());
    load_config(config, (sources() / (GetParam() + ".yaml")).string(), settings);
    corpora_ = open_corpora(config.data);
    config_ = resolve_config(config, corpora_.vocab_size);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static fs::path sources() { return fs::path(source_dir()) / "tests/golden"; }
  fs::path corpus() const { return folder_ / "corpus.h5"; }

  // Writes a corpus of sums in words: learnable texts that are generated with integers only.
  void write_corpus() const {
    const char* digits[] = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"};
    const auto tokenizer = bytes_tokenizer();
    TokenStoreWriter writer(corpus().string(), tokenizer->vocab_size());
    writer.begin_document(Split::train);
    for (int i = 0; i < 400; ++i) {
      const int a = i * 37 % 10, b = (i * i + 3 * i + i / 7) % 10;
      const std::string line = str(digits[a], " and ", digits[b], " make ", a + b, i % 5 ? ".\n" : "!\n");
      writer.append(Split::train, tokenizer->encode(line));
    }
    writer.finish(*tokenizer, "sums in words");
  }

  std::unique_ptr<Loader> loader(std::int64_t rows) const {
    return std::make_unique<Loader>(corpora_, LoaderOptions{config_.model.context, rows, config_.run.seed, 0, 1, 0});
  }
  Tokens tokens() const {
    Tokens all;
    const auto batches = loader(config_.train.batch_size);
    for (std::int64_t s = 0; s < config_.train.steps; ++s) {
      const Batch b = batches->next();
      all.inputs.insert(all.inputs.end(), b.inputs.begin(), b.inputs.end());
      all.targets.insert(all.targets.end(), b.targets.begin(), b.targets.end());
    }
    return all;
  }

  fs::path folder_;
  Corpora corpora_;
  Config config_;
};

void dump_weights(const fs::path& folder, const Weights& weights) {
  fs::create_directories(folder);
  for (const auto& [name, values] : weights) write_values(folder / (name + ".f32"), values);
}

void dump(const fs::path& folder, const Json& index, const Tokens& tokens, const Weights& initial,
          const Weights& last) {
  dump_weights(folder / "initial", initial);
  dump_weights(folder / "final", last);
  write_values(folder / "inputs.i32", tokens.inputs);
  write_values(folder / "targets.i32", tokens.targets);
  std::ofstream(folder / "index.json") << index.dump(1) << "\n";
}

void expect_steps(const std::vector<StepReport>& reports, const Json& want, double loss_tolerance,
                  double norm_tolerance) {
  const auto losses = want.at("loss").get<std::vector<double>>(), norms = want.at("norm").get<std::vector<double>>();
  ASSERT_EQ(losses.size(), reports.size());
  ASSERT_EQ(norms.size(), reports.size());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_NEAR(reports[i].loss, losses[i], loss_tolerance * losses[i]) << "loss of step " << i + 1;
    EXPECT_NEAR(reports[i].norm, norms[i], norm_tolerance * norms[i]) << "gradient norm of step " << i + 1;
  }
}

TEST_P(Golden, EqualsTheReference) {
  const std::string config = read_text(sources() / (GetParam() + ".yaml"));
  const char* dump_to = std::getenv("RINGMASTER_GOLDEN_DUMP");
  const Tokens data = tokens();
  Json want;
  if (!dump_to) {
    want = Json::parse(read_text(sources() / (GetParam() + ".json")));
    const std::string advice = "; regenerate the reference (tests/golden/README.md)";
    ASSERT_EQ(want.at("config").get<std::string>(), config) << "the settings are other ones" << advice;
    ASSERT_EQ(want.at("tokens").get<std::int64_t>(), data.mark()) << "the batches are other ones" << advice;
  }

  const ExecContext ctx = make_exec_context(config_);
  const auto mesh = mesh_of_one();
  const auto batches = loader(plan_of(config_, 1).micro_batch);
  Trainer trainer(config_, ctx, *mesh, *batches);
  const Weights initial = weights_of(trainer);
  if (!dump_to) expect_weights(initial, want.at("initial"), kInitial, "initially: regenerate the reference");
  if (HasFailure()) return;
  std::vector<StepReport> reports;
  for (std::int64_t s = 0; s < config_.train.steps; ++s) reports.push_back(trainer.step());

  if (!dump_to) {
    expect_steps(reports, want, kLossTolerance, kNormTolerance);
    expect_weights(weights_of(trainer), want.at("final"), kFinal, "after the last step");
    return;
  }
  Json index = {{"config", config}};
  for (const StepReport& r : reports) {
    index["loss"].push_back(r.loss);
    index["norm"].push_back(r.norm);
  }
  for (const auto& [name, values] : initial) index["parameters"].push_back(name);
  dump(fs::path(dump_to) / GetParam(), index, data, initial, weights_of(trainer));
  GTEST_SKIP() << "written to " << dump_to << ", nothing compared";
}

// Runs the same trainings on a GPU in f32.
class GpuGolden : public Golden {
 protected:
  std::vector<std::string> overrides() const override {
    return {"run.device=cuda", "train.precision=fp32", "run.directory=" + (folder_ / "run").string()};
  }
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    Golden::SetUp();
  }
};

TEST_P(GpuGolden, EqualsTheReference) {
  const Json want = Json::parse(read_text(sources() / (GetParam() + ".json")));
  const ExecContext ctx = make_exec_context(config_);
  const auto mesh = mesh_of_one();
  const auto batches = loader(plan_of(config_, 1).micro_batch);
  Trainer trainer(config_, ctx, *mesh, *batches);
  expect_weights(weights_of(trainer), want.at("initial"), kGpuInitial, "initially");
  if (HasFailure()) return;
  std::vector<StepReport> reports;
  for (std::int64_t s = 0; s < config_.train.steps; ++s) {
    trainer.launch();
    if (trainer.in_flight() > trainer.max_in_flight()) reports.push_back(trainer.finish());
  }
  while (trainer.in_flight() > 0) reports.push_back(trainer.finish());
  expect_steps(reports, want, kGpuTolerance, kGpuTolerance);
  expect_weights(weights_of(trainer), want.at("final"), kGpuFinal, "after the last step");
}

const auto kFamilies = testing::Values("gpt2", "llama", "magneto");
std::string family_name(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Families, Golden, kFamilies, family_name);
INSTANTIATE_TEST_SUITE_P(Families, GpuGolden, kFamilies, family_name);

}  // namespace
}  // namespace ring::test
