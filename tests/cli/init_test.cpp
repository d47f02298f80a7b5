// Files written by `ringmaster init`, which can be trained without changes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/settings.h"
#include "cli/starting_settings.h"
#include "core/check.h"
#include "core/fields.h"
#include "core/text_file.h"
#include "engine/config.h"
#include "engine/run_directory.h"
#include "model/architectures.h"
#include "tests/paths.h"
#include "tests/process.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

class InitCommand : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Returns the output or the error.
  static std::string run(const std::vector<std::string>& arguments) {
    Program app("ringmaster", "test");
    add_init_command(app);
    add_tokenizer_commands(app);
    add_data_commands(app);
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

using SlowInitCommand = InitCommand;

TEST_F(InitCommand, EveryTemplateLoads) {
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

TEST_F(InitCommand, EveryKeyHasAComment) {
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

// The templates `hybrid` and `long-context` can be compared: they have the same number of tokens and, within 2 %, of
// parameters. So has a dense model, which differs from `long-context` only in the pattern of attention.
TEST_F(InitCommand, TheHybridHasAsManyParametersAsLongContext) {
  for (const bool gpu : {false, true}) {
    SCOPED_TRACE(gpu ? "on a GPU" : "on CPUs");
    const auto config_of = [&](const char* kind) {
      std::ofstream(path("c.yaml")) << starting_settings({.kind = kind, .tokens = 50'000'000, .gpu = gpu});
      Config config = load(path("c.yaml"));
      config.model.vocab_size = 257;  // a small embedding, which is equal in both
      return config;
    };
    const auto parameters = [](const Config& c) {
      return static_cast<double>(make_model(c.model.resolved())->parameters().num_elements());
    };
    const Config hybrid = config_of("hybrid"), dense = config_of("long-context");
    EXPECT_NEAR(parameters(hybrid) / parameters(dense), 1, 0.02);
    EXPECT_EQ(hybrid.model.context * hybrid.train.batch_size, dense.model.context * dense.train.batch_size);
    EXPECT_EQ(hybrid.train.steps, dense.train.steps);
    EXPECT_EQ(attention_layers_of(hybrid.model).size() * 4, static_cast<std::size_t>(hybrid.model.layers));
    EXPECT_EQ(hybrid.model.layers, dense.model.layers);
  }
}

// Steps cover the corpus once, but are at least 100 and, on CPUs, at most 2,000.
TEST_F(InitCommand, StepsFollowFromTheCorpus) {
  const auto steps = [&](std::uint64_t tokens) {
    std::ofstream(path("c.yaml")) << starting_settings({.kind = "llama-small", .tokens = tokens});
    return load(path("c.yaml")).train.steps;
  };
  EXPECT_EQ(steps(1000 * 8 * 128), 1000);
  EXPECT_EQ(steps(5), 100);
  EXPECT_EQ(steps(std::uint64_t{1} << 60), 2000);
}

TEST_F(InitCommand, AFileIsWrittenForTheGivenCorpus) {
  prepare("c.h5", 600'000);
  const std::string said = run({"init", path("my.yaml"), "--data", path("c.h5"), "--device", "cpu"});
  EXPECT_NE(said.find("next: ringmaster train " + path("my.yaml")), std::string::npos) << said;
  const Config config = load(path("my.yaml"));
  EXPECT_GT(config.train.steps, 500);
  EXPECT_LT(config.train.steps, 590);  // steps of 1024 tokens, without the validation split
  EXPECT_NE(run({"init", path("other.yaml"), "--data", path("none.h5")}).find("next: ringmaster data prepare"),
            std::string::npos);
}

TEST_F(InitCommand, NamesThatYamlCannotHoldAreRefused) {
  prepare("c.h5", 600'000);
  const std::string said =
      run({"init", path("my.yaml"), "--data", path("c.h5"), "--device", "cpu", "--name", "caf\xE9"});
  EXPECT_NE(said.find("UTF-8"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(path("my.yaml")));
}

TEST_F(InitCommand, ALengthOnTheCommandLineReplacesTheFiles) {
  prepare("c.h5", 600'000);
  run({"init", path("my.yaml"), "--data", path("c.h5"), "--device", "cpu"});
  EXPECT_GT(load_settings(path("my.yaml"), {}).train.steps, 0);
  const Config epochs = load_settings(path("my.yaml"), {"train.epochs=2"});
  EXPECT_EQ(epochs.train.steps, 0);
  EXPECT_EQ(epochs.train.epochs, 2);
  EXPECT_EQ(load_settings(path("my.yaml"), {"train.tokens=0"}).train.steps, load(path("my.yaml")).train.steps);
  EXPECT_THROW(load_settings(path("my.yaml"), {"train.epochs=2", "train.steps=3"}), Error);
}

TEST_F(InitCommand, EveryTemplateSavesEarly) {
  for (const std::string& kind : starting_kinds()) {
    std::ofstream(path("c.yaml")) << starting_settings({.kind = kind});
    EXPECT_TRUE(load(path("c.yaml")).checkpoint.automatic) << kind;
  }
}

// A question and its answer fit into one window.
TEST(StartingContext, HoldsTheLongestDocumentOfAFinetune) {
  const auto context = [](std::uint64_t longest, bool gpu, std::int64_t of_model) {
    StartingPoint p{.kind = "finetune", .longest = longest, .gpu = gpu, .weights = "w", .model = ModelConfig{}};
    p.model->context = of_model;
    return finetune_context(p);
  };
  EXPECT_EQ(context(625, false, 4096), 1024);
  EXPECT_EQ(context(30, false, 4096), 256);
  EXPECT_EQ(context(3000, false, 4096), 4096);
  EXPECT_EQ(context(100'000, false, 8192), 4096);
  EXPECT_EQ(context(6000, true, 131072), 8192);
  EXPECT_EQ(context(100'000, true, 131072), 32768);
  EXPECT_EQ(context(625, true, 512), 512);
  EXPECT_EQ(context(0, false, 4096), 256);
  EXPECT_EQ(context(0, true, 131072), 4096);
}

TEST_F(InitCommand, DocumentsLongerThanTheContextAreCounted) {
  const auto init_output = [&](std::int64_t known, std::size_t bytes) {
    Config base = config_of_base();
    base.model.context = known;
    RunDirectory(path("base")).create(base, *bytes_tokenizer());
    std::ofstream(path("text.txt")) << std::string(bytes, 'a');
    run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("c.h5"),
         "--validation-fraction", "0", "--force"});
    return run({"init", path("t.yaml"), "--template", "finetune", "--from", path("base"), "--data", path("c.h5"),
                "--device", "cpu", "--force"});
  };
  const std::string said = init_output(512, 600);
  for (const char* part : {"1 of 1 documents", "model.context (512)", "601 tokens", "shorten them"})
    EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
  EXPECT_NE(init_output(8192, 5000).find("context of 8192: raise model.context"), std::string::npos);
  EXPECT_EQ(init_output(8192, 600).find("note:"), std::string::npos);
  EXPECT_EQ(load(path("t.yaml")).model.context, 1024);
  EXPECT_EQ(load(path("t.yaml")).data.packing.best_fit, 1024);
}

TEST_F(InitCommand, ARunIsNotNamedAfterItsBase) {
  const fs::path before = fs::current_path();
  fs::current_path(path(""));
  RunDirectory("runs/best").create(config_of_base(), *bytes_tokenizer());
  const std::vector<std::string> tune = {"init",   "best.yaml", "--template", "finetune",
                                         "--from", "runs/best", "--device",   "cpu"};
  EXPECT_EQ(run(tune).find("note:"), std::string::npos);
  EXPECT_EQ(load("best.yaml").run.name, "best-finetune");
  std::vector<std::string> named = tune;
  named.insert(named.end(), {"--name", "best", "--force"});
  EXPECT_NE(run(named).find("--name: best is the run"), std::string::npos);
  EXPECT_NE(run({"init", "sub.yaml", "--name", "best", "--device", "cpu"}).find("note: runs/best exists"),
            std::string::npos);
  fs::current_path(before);
}

TEST_F(InitCommand, FinetuneNeedsACorpusWithTheTokenizerOfItsWeights) {
  RunDirectory(path("base")).create(config_of_base(), *bytes_tokenizer());
  std::ofstream(path("text.txt")) << std::string(1000, 'a') << "b";
  run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "chars", "--output", path("chars.h5")});
  const auto init_output = [&](const std::string& data) {
    return run({"init", path("t.yaml"), "--template", "finetune", "--from", path("base"), "--data", path(data)});
  };
  EXPECT_NE(init_output("chars.h5").find("Prepare it again with --tokenizer " + path("base/tokenizer.rmt")),
            std::string::npos);
  std::ofstream(path("chats.jsonl")) << R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_NE(
      init_output("chats.jsonl").find("--chat-field --chat-template plain --tokenizer " + path("base/tokenizer.rmt")),
      std::string::npos);
  EXPECT_FALSE(fs::exists(path("t.yaml")));
}

TEST_F(InitCommand, FinetuneTakesOnlyTheModelOfItsWeights) {
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
  EXPECT_NE(said.find("--chat-field --chat-template plain --output"), std::string::npos) << "the run has no template";
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

// An import stores the model's settings in model.yaml.
TEST_F(InitCommand, FinetuneIncludesTheModelOfAnImport) {
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

TEST_F(InitCommand, FinetuneContextIsAtMostThatOfTheModel) {
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

// Unquoted, YAML would read the name as a section and the path as ending at a comment.
TEST_F(InitCommand, NamesAndPathsAreQuoted) {
  run({"init", path("t.yaml"), "--name", "a: b", "--data", "my #1.h5"});
  const Config config = load(path("t.yaml"));
  EXPECT_EQ(config.run.name, "a: b");
  EXPECT_EQ(config.data.path, "my #1.h5");
}

TEST_F(InitCommand, ErrorsNameARemedy) {
  std::ofstream(path("there.yaml")) << "mine";
  const std::string said = run({"init", path("there.yaml")});
  EXPECT_NE(said.find("exists"), std::string::npos) << said;
  EXPECT_NE(said.find("--force"), std::string::npos) << said;
  EXPECT_EQ(read_text_file(path("there.yaml"), 100), "mine");
  EXPECT_EQ(run({"init", path("there.yaml"), "--force", "--device", "cpu"}).find("init:"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--template", "finetune"}).find("requires --from RUN"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--template", "finetune", "--from", path("no")}).find("ringmaster import"),
            std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--from", path("no")}).find("--template finetune"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--data", path("there.yaml")}).find("there.yaml"), std::string::npos);
  EXPECT_NE(run({"init", path("a.yaml"), "--template", "gpt5"}).find("llama-small"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("a.yaml")));
}

// Ten steps over the same sentence: the loss of a model that learns nothing is about log(257) = 5.5.
TEST_F(SlowInitCommand, EveryTemplateTrains) {
  std::ofstream text(path("text.txt"));
  for (int i = 0; i < 2000; ++i) text << "The same words again. ";
  text.close();
  run({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("c.h5")});
  for (const std::string& kind : starting_kinds()) {
    if (kind == "finetune") continue;  // it requires a run
    SCOPED_TRACE(kind);
    const std::string file = path(kind + ".yaml");
    run({"init", file, "--template", kind, "--data", path("c.h5"), "--device", "cpu"});
    const test::Finished trained =
        test::run_process({test::ring_binary(), "train", file, "run.device=cpu", "run.directory=" + path(kind),
                           "train.steps=10", "schedule.warmup_steps=1"});
    ASSERT_EQ(trained.code, 0) << trained.output;
    double loss = 0;
    std::ifstream records(path(kind) + "/metrics.jsonl");
    for (std::string line; std::getline(records, line);)
      if (const auto record = nlohmann::json::parse(line); record["group"] == "validation") loss = record["loss"];
    EXPECT_GT(loss, 0);
    EXPECT_LT(loss, 4.5);
  }
}

}  // namespace
}  // namespace ring
