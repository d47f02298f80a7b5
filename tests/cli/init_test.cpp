// ringmaster init: files that train as they are.
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/commands.h"
#include "cli/starting_settings.h"
#include "core/check.h"
#include "core/fields.h"
#include "core/text_file.h"
#include "data/tokenizer.h"
#include "engine/config.h"
#include "trainer/run_directory.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

class Init : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // What is printed, or the error.
  static std::string run(std::vector<std::string> arguments) {
    CLI::App app{"test", "ringmaster"};
    add_init_command(app);
    add_tokenizer_commands(app);
    add_data_commands(app);
    std::ranges::reverse(arguments);
    testing::internal::CaptureStdout();
    std::string error;
    try {
      app.parse(arguments);
    } catch (const std::exception& e) {
      error = e.what();
    }
    return testing::internal::GetCapturedStdout() + error;
  }
  static Config load(const std::string& file) {
    Config config;
    load_config(config, file);
    return config;
  }
  static Config config_of_base() {
    Config config;
    config.model.context = 512, config.model.layers = 2, config.model.width = 64, config.model.heads = 2;
    config.model = config.model.resolved();
    config.run.directory = "of-the-base";
    config.data.path = "old.h5";
    config.train.steps = 7;
    return config;
  }
  void prepare(const std::string& name, std::size_t bytes) const {
    std::ofstream(path("text.txt")) << std::string(bytes, 'a');
    run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path(name)});
  }

 private:
  fs::path folder_ = fs::temp_directory_path() / ("ringmaster_init_" + std::to_string(::getpid()));
};

TEST_F(Init, EveryTemplateLoads) {
  for (const std::string& kind : starting_kinds())
    for (const bool gpu : {false, true}) {
      SCOPED_TRACE(kind + (gpu ? " on a GPU" : " on CPUs"));
      StartingPoint p{.kind = kind, .name = "n", .data = "d.h5", .tokens = 5'000'000, .gpu = gpu};
      if (kind == "finetune") p.weights = "runs/base", p.model = config_of_base().model;
      const std::string yaml = starting_settings(p);
      std::ofstream(path("c.yaml")) << yaml;
      const Config config = load(path("c.yaml"));
      EXPECT_EQ(config.run.name, "n");
      EXPECT_EQ(config.data.path, "d.h5");
      EXPECT_EQ(config.run.init_from, p.weights);
      EXPECT_EQ(config.train.micro_batch, gpu ? kAutoMicroBatch : 0);
      EXPECT_EQ(config.model.layers, kind == "finetune" ? 2 : gpu ? 12 : 4);
    }
}

TEST_F(Init, EveryKeyHasAComment) {
  for (const std::string& kind : starting_kinds()) {
    std::istringstream lines(starting_settings({.kind = kind}));
    std::string before;
    for (std::string line; std::getline(lines, line); before = line) {
      EXPECT_LE(line.size(), 120u) << line;
      const bool value =
          line.starts_with("  ") && !line.ends_with(":") && line.find_first_not_of(' ') != line.find('#');
      const bool said = line.find(" # ") != std::string::npos || before.find("# ") != std::string::npos;
      EXPECT_TRUE(said || !value) << line;
    }
  }
}

// 2,000 steps at most where one waits for them, 100 at least, else the corpus once.
TEST_F(Init, StepsFollowFromTheCorpus) {
  const auto steps = [&](std::uint64_t tokens) {
    std::ofstream(path("c.yaml")) << starting_settings({.kind = "llama-small", .tokens = tokens});
    return load(path("c.yaml")).train.steps;
  };
  EXPECT_EQ(steps(1000 * 8 * 128), 1000);
  EXPECT_EQ(steps(5), 100);
  EXPECT_EQ(steps(std::uint64_t{1} << 60), 2000);
}

TEST_F(Init, WritesAFileForTheCorpusThatIsThere) {
  prepare("c.h5", 600'000);
  const std::string said = run({"init", path("my.yaml"), "--data", path("c.h5"), "--device", "cpu"});
  EXPECT_NE(said.find("next: ringmaster train " + path("my.yaml")), std::string::npos) << said;
  const Config config = load(path("my.yaml"));
  EXPECT_GT(config.train.steps, 500);
  EXPECT_LT(config.train.steps, 590);  // of 1024 tokens, without the validation split
  EXPECT_NE(run({"init", path("other.yaml"), "--data", path("none.h5")}).find("next: ringmaster data prepare"),
            std::string::npos);
}

TEST_F(Init, EveryTemplateSavesEarly) {
  for (const std::string& kind : starting_kinds()) {
    std::ofstream(path("c.yaml")) << starting_settings({.kind = kind});
    EXPECT_TRUE(load(path("c.yaml")).checkpoint.automatic) << kind;
  }
}

// So that a question and its answer lie in one window.
TEST(StartingContext, HoldsTheLongestDocumentOfAFinetune) {
  const auto context = [](std::uint64_t longest, bool gpu, std::int64_t of_model) {
    StartingPoint p{.kind = "finetune", .longest = longest, .gpu = gpu, .weights = "w", .model = ModelConfig{}};
    p.model->context = of_model;
    const std::string text = starting_settings(p);
    const std::size_t at = text.find("context: ");
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + 9));
  };
  EXPECT_EQ(context(625, false, 4096), 1024);
  EXPECT_EQ(context(30, false, 4096), 256);
  EXPECT_EQ(context(100'000, false, 4096), 1024);
  EXPECT_EQ(context(100'000, true, 131072), 4096);
  EXPECT_EQ(context(625, true, 512), 512);
  EXPECT_EQ(context(0, false, 4096), 256);
}

TEST_F(Init, FinetuneTakesTheModelOfItsWeightsAndNothingElse) {
  Config base = config_of_base();
  base.data = {};
  base.data.mixture = {{.path = "a.h5", .weight = 1}, {.path = "b.h5", .weight = 2}};
  base.train.tokens = 1'000'000, base.train.steps = 0;
  base.train.batch_size = base.train.micro_batch = 64;
  base.model.attention_layers = {{.layers = "0", .attention = {.kind = "window", .window = 16}}};
  RunDirectory(path("base")).create(base, *bytes_tokenizer());
  const std::string said =
      run({"init", path("t.yaml"), "--template", "finetune", "--from", path("base"), "--device", "cpu"});
  EXPECT_NE(said.find("--tokenizer " + path("base/tokenizer.rmt")), std::string::npos) << said;
  const Config config = load(path("t.yaml"));
  EXPECT_EQ(config.run.init_from, path("base"));
  EXPECT_EQ(config.run.name, "t") << "the file's name";
  EXPECT_EQ(config.run.directory, "");
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_EQ(config.train.tokens, 0);
  EXPECT_TRUE(config.data.mixture.empty());
  EXPECT_TRUE(config.data.packing.documents);
  base.model.context = 256;
  EXPECT_EQ(diff_configs(base, config, {"run", "data", "train", "optimizer", "schedule", "checkpoint"}),
            std::vector<std::string>{});
}

struct ModelFile {
  ModelConfig model;
  void fields(Fields& f) { f("model", model, "the decoder"); }
};

// An import keeps the model's settings in model.yaml.
TEST_F(Init, FinetuneIncludesTheModelOfAnImport) {
  Config base = config_of_base();
  base.model.attention_layers = {{.layers = "0", .attention = {.kind = "window", .window = 16}}};
  RunDirectory(path("base")).create(base, *bytes_tokenizer());
  std::ofstream(path("base/model.yaml")) << to_yaml(ModelFile{base.model});
  fs::create_directory(path("below"));
  for (const char* file : {"t.yaml", "below/t.yaml"}) {
    run({"init", path(file), "--template", "finetune", "--from", path("base"), "--device", "cpu"});
    const std::string text = read_text_file(path(file), 100'000);
    EXPECT_NE(text.find("include: "), std::string::npos) << text;
    EXPECT_EQ(text.find("layers:"), std::string::npos) << text;
    const Config config = load(path(file));
    EXPECT_EQ(config.model.context, 256);
    base.model.context = 256;
    EXPECT_EQ(diff_configs(base, config, {"run", "data", "train", "optimizer", "schedule", "checkpoint"}),
              std::vector<std::string>{});
  }
}

TEST_F(Init, FinetuneAsksForNoMoreContextThanTheModelKnows) {
  for (const auto positions : {Positions::learned, Positions::rope})
    for (const std::int64_t context : {48, 512}) {
      Config base = config_of_base();
      base.model.positions = positions;
      base.model.context = context;
      RunDirectory(path("base")).create(base, *bytes_tokenizer());
      run({"init", path("t.yaml"), "--template", "finetune", "--from", path("base"), "--device", "cpu", "--force"});
      EXPECT_EQ(load(path("t.yaml")).model.context, positions == Positions::rope && context == 512 ? 256 : context);
    }
}

// As YAML would read them otherwise, a comment and a section begin.
TEST_F(Init, NamesAndPathsMayBeAnything) {
  run({"init", path("t.yaml"), "--name", "a: b", "--data", "my #1.h5"});
  const Config config = load(path("t.yaml"));
  EXPECT_EQ(config.run.name, "a: b");
  EXPECT_EQ(config.data.path, "my #1.h5");
}

TEST_F(Init, RefusesWithARemedy) {
  std::ofstream(path("there.yaml")) << "mine";
  EXPECT_NE(run({"init", path("there.yaml")}).find("exists. Give another name, or --force"), std::string::npos);
  EXPECT_EQ(read_text_file(path("there.yaml"), 100), "mine");
  EXPECT_EQ(run({"init", path("there.yaml"), "--force", "--device", "cpu"}).find("init:"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--template", "finetune"}).find("needs --from RUN"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--template", "finetune", "--from", path("no")}).find("ringmaster import"),
            std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--from", path("no")}).find("--template finetune"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--data", path("there.yaml")}).find("there.yaml"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--template", "gpt5"}).find("llama-small"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("a.yaml")));
}

}  // namespace
}  // namespace ring
