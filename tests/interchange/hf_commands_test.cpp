// `ringmaster export` and `import`, and uses of imported weights.
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class HfCommands : public Runs {
 protected:
  void expect(const Finished& f, int code, const std::string& part) {
    EXPECT_EQ(f.code, code) << f.output;
    EXPECT_NE(f.output.find(part), std::string::npos) << part << " not in: " << f.output;
  }
  // Returns the loss of the first step, before any training.
  std::string first_loss(const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"model.positions=rope", "model.norm=rms", "model.mlp=swiglu",
                                    "model.dropout=0",      "train.steps=1",  "model.tied_embeddings=true"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished f = run_process(train(run, all));
    EXPECT_EQ(f.code, 0) << f.output;
    return losses(run).at(1);
  }
};

// A model that is not on disk is reported before other missing options.
TEST_F(HfCommands, ANameOnHuggingFaceIsRefusedWithTheDownloadCommand) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--output", path("x")}}) {
    std::vector<std::string> words{"import", "NoSuchOwner/model-1b"};
    words.insert(words.end(), more.begin(), more.end());
    expect(ring(words), 1, "Nothing is downloaded. If NoSuchOwner/model-1b is a model on Hugging Face, `hf download");
  }
  expect(ring({"import", path("none")}), 1, "none does not exist");
  fs::create_directories(path("there"));
  expect(ring({"import", path("there")}), 2, "--output is required");
  expect(ring({"import", "--help"}), 0, "--output");
}

TEST_F(HfCommands, ImportedWeightsAreTrainedAndSampled) {
  first_loss("books", {"train.steps=30"});
  expect(ring({"export", path("books"), "--output", path("hf")}), 0, "LlamaForCausalLM");
  expect(ring({"import", path("hf"), "--output", path("again")}), 0,
         "ringmaster init my.yaml --template finetune --from " + path("again") + " --data");
  const std::string from_run = first_loss("a", {"run.init_from=" + path("books")});
  EXPECT_EQ(first_loss("b", {"run.init_from=" + path("again")}), from_run);
  std::ofstream(path("c.yaml")) << "include: again/model.yaml\ndata: {path: " << path("a.h5")
                                << "}\ntrain: {steps: 1}\nrun: {init_from: " << path("again")
                                << ", directory: " << path("c") << ", device: cpu}\n";
  expect(ring({"train", path("c.yaml"), "train.batch_size=4"}), 0, "weights from " + path("again"));
  expect(ring({"generate", path("again"), "--prompt", "line", "--max-tokens", "3"}), 0, "line");
  expect(ring({"eval", path("again"), "--data", path("a.h5")}), 0, "loss ");
  expect(ring({"checkpoint", "verify", path("again")}), 0, "ok ");
}

// Published generation settings apply in `generate`, in a run that starts from the weights, and after the run resumes.
TEST_F(HfCommands, TextsEndAndAreSampledAsPublished) {
  first_loss("books", {"train.steps=30"});
  ASSERT_EQ(ring({"export", path("books"), "--output", path("hf")}).code, 0);
  const auto generate = [&](const std::string& run, std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", path(run), "--prompt", "line 1", "--max-tokens", "6", "--json"});
    const Finished f = ring(more);
    EXPECT_EQ(f.code, 0) << f.output;
    return nlohmann::json::parse(f.output);
  };
  const auto likeliest = generate("books", {"--temperature", "0"});
  const std::string text = likeliest.at("text");
  ASSERT_EQ(likeliest.at("tokens"), 6);
  ASSERT_LT(static_cast<unsigned char>(text.at(0)), 0x80);
  std::ofstream(path("hf/generation_config.json"))
      << nlohmann::json{{"eos_token_id", {256, static_cast<int>(text[0])}}, {"temperature", 0}};
  ASSERT_EQ(ring({"import", path("hf"), "--output", path("again")}).code, 0);
  first_loss("tuned", {"run.init_from=" + path("again"), "optimizer.lr=1e-20"});
  first_loss("tuned", {"run.init_from=" + path("again"), "optimizer.lr=1e-20", "train.steps=2", "--allow-changes"});
  for (const char* run : {"again", "tuned"}) {
    const auto stopped = generate(run, {});
    EXPECT_EQ(stopped.at("text"), "") << run;
    EXPECT_EQ(stopped.at("end"), "end_of_text") << run;
    for (const char* seed : {"1", "2"})
      EXPECT_EQ(generate(run, {"--ignore-end", "--seed", seed}).at("text"), text) << run << " is drawn at 0";
    EXPECT_NE(generate(run, {"--ignore-end", "--temperature", "90"}).at("text"), text) << "the option counts";
  }
  first_loss("tuned", {"--fresh"});
  EXPECT_FALSE(fs::exists(path("tuned/generation_config.json"))) << "of the run that was here before";
}

TEST_F(HfCommands, GgufIsOneFile) {
  first_loss("books", {"train.steps=2"});
  const std::vector<std::string> gguf = {"export", path("books"), "--format", "gguf", "--output", path("b.gguf")};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), gguf.begin(), gguf.end());
    return ring(more);
  };
  expect(with({"--max-file-bytes", "1GB"}), 1, "--format gguf writes only one file");
  expect(with({"--dtype", "f64"}), 2, "f64");
  EXPECT_FALSE(fs::exists(path("b.gguf")));
  expect(with({"--dtype", "q8_0"}), 0, "b.gguf: llama, ");
  expect(with({}), 1, "b.gguf already exists and is not overwritten");
  expect(ring({"export", path("books"), "--output", path("hf"), "--dtype", "q8_0"}), 1,
         "--dtype: q8_0 is not available with --format hf");
}

TEST_F(HfCommands, TheOutputsNameChoosesTheFormat) {
  first_loss("books", {"train.steps=2"});
  for (const std::string name : {"a.gguf", "A.GGUF"}) {
    expect(ring({"export", path("books"), "--output", path(name)}), 0, name + ": llama, ");
    std::ifstream file(path(name), std::ios::binary);
    std::string magic(4, '\0');
    file.read(magic.data(), 4);
    EXPECT_EQ(magic, "GGUF") << name;
  }
  expect(ring({"export", path("books"), "--format", "hf", "--output", path("b.gguf")}), 1,
         "--format hf writes a folder, got the GGUF file " + path("b.gguf") + ". Omit --format");
  EXPECT_FALSE(fs::exists(path("b.gguf")));
  expect(ring({"export", path("books"), "--output", path("v1.gguf.d")}), 0, "LlamaForCausalLM");
  EXPECT_TRUE(fs::exists(path("v1.gguf.d/config.json")));
}

TEST_F(HfCommands, ImpossibleUsesAreRefused) {
  first_loss("books", {"train.steps=2"});
  ASSERT_EQ(ring({"export", path("books"), "--output", path("hf"), "--dtype", "bf16"}).code, 0);
  ASSERT_EQ(ring({"import", path("hf"), "--output", path("again")}).code, 0);
  expect(ring({"train", path("again")}), 1, "not training that can be resumed");
  expect(run_process(train("again")), 1, "not training that can be resumed");
  expect(ring({"eval", path("again")}), 1, "Give a corpus");
  expect(ring({"export", path("books"), "--output", path("hf")}), 1, "nothing is overwritten");
  expect(ring({"import", path("hf"), "--output", path("again")}), 1, "nothing is overwritten");
  expect(ring({"import", path("books"), "--output", path("x")}), 1, "has no config.json");
  expect(ring({"export", path("books"), "--output", path("x"), "--dtype", "f64"}), 2, "f64");
  EXPECT_FALSE(fs::exists(path("x")));
  const std::string download =
                        "Nothing is downloaded. If a-b/C-1.5B is a model on Hugging Face, `hf download a-b/C-1.5B "
                        "--local-dir C-1.5B` downloads it",
                    import = download + ", and `ringmaster import C-1.5B --output runs/C-1.5B` turns it into a run";
  expect(ring({"import", "a-b/C-1.5B", "--output", path("x")}), 1, download + " into a folder that can be given here");
  expect(ring({"generate", "a-b/C-1.5B"}), 1, import);
  expect(ring({"init", path("i.yaml"), "--template", "finetune", "--from", "a-b/C-1.5B"}), 1, import);
  expect(run_process(train("d", {"run.init_from=a-b/C-1.5B"})), 1, import);
}

TEST_F(HfCommands, APublishedModelGivenAsARunIsRefusedWithTheImportCommand) {
  fs::create_directories(path("model-1b"));
  std::ofstream(path("model-1b/config.json")) << R"({"model_type": "llama"})";
  const std::string import = "ringmaster import " + path("model-1b") + " --output runs/model-1b";
  for (const char* command : {"generate", "train", "eval"}) expect(ring({command, path("model-1b")}), 1, import);
  expect(ring({"export", path("model-1b"), "--output", path("x")}), 1, import);
  expect(ring({"init", path("i.yaml"), "--template", "finetune", "--from", path("model-1b")}), 1, import);
  expect(run_process(train("d", {"run.init_from=" + path("model-1b")})), 1, import);
  expect(ring({"generate", path("model-1b") + "/"}), 1, path("model-1b") + "/ --output runs/model-1b");
}

TEST_F(HfCommands, AFolderMayBeGivenAsTheTokenizer) {
  first_loss("books", {"train.steps=2"});
  expect(ring({"data", "prepare", "--input", path("text.txt"), "--tokenizer", path("books"), "--output", path("b.h5")}),
         0, "bytes, 257 tokens");
  ASSERT_EQ(ring({"export", path("books"), "--output", path("hf")}).code, 0);
  expect(ring({"tokenizer", "inspect", path("hf")}), 0, "bytes");
  fs::remove(path("hf/tokenizer.rmt"));
  expect(ring({"tokenizer", "inspect", path("hf")}), 1, "expected a folder with tokenizer.rmt, tokenizer.json or");
  expect(ring({"import", path("hf"), "--tokenizer", path("books"), "--output", path("again")}), 0, "LlamaForCausalLM");
  expect(ring({"tokenizer", "encode", path("again"), "a"}), 0, "97");
}

}  // namespace
}  // namespace ring::test
