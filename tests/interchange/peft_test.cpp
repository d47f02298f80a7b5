// Low-rank adapters: exports as PEFT's files and merged into the weights, and adapters that are merged after loading.
#include "interchange/hf/peft.h"

#include <gtest/gtest.h>

#include "checkpoint/safetensors/reader.h"
#include "checkpoint/safetensors/writer.h"
#include "interchange/gguf/export.h"
#include "tests/interchange/published.h"

namespace ring::test {
namespace {

void fill_small(const Tensor& t, std::uint64_t seed) {
  fill(t, seed);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] *= 0.05f;
}

// Writes a run whose base weights depend only on their names, and whose adapters change the logits visibly.
fs::path write_adapted(const Config& config, const fs::path& folder) {
  const ExecContext ctx = make_exec_context(config);
  Decoder model(config.model);
  model.allocate(ctx, 3, {.trainable = false});
  std::uint64_t seed = 0;
  for (Param* p : model.parameters().declared())
    if (p->adapter) fill_small(p->var.value, ++seed);
  State state;
  const OwnedShard all = own_everything(model.parameters());
  add_parameters(state, kWeightsPrefix, model.parameters(), all.pieces, all.values);
  fs::create_directories(folder);
  write_text(folder / "config.yaml", settings_with_hash(config));
  save_tokenizer(*bytes_tokenizer(), (folder / "tokenizer.rmt").string());
  return write_checkpoint(folder / "checkpoints", 7, state.snapshot(ctx.stream),
                          checkpoint_metadata(config, {}, nullptr));
}

std::vector<float> logits_of(const Session& session) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 30; ++i) ids.push_back(i * 31 % 257);
  Run run{session.ctx};
  const Var hidden =
      session.model->hidden(run, from_host(ids, session.ctx.stream), Sequences::uniform(1, 30, session.ctx));
  const Tensor logits = session.model->logits(run, hidden.value);
  return to_host<float>(logits.view({logits.numel()}), session.ctx.stream);
}

double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    EXPECT_TRUE(std::isfinite(difference));
    most = std::max(most, difference);
  }
  return most;
}

constexpr double kTolerance = 1e-6;  // of the largest logit

class Peft : public testing::Test {
 protected:
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  Session open(const std::string& run) const {
    return open_session(path(run).string(), {.threads = 2, .device = DeviceChoice::cpu});
  }
  // Writes the runs "adapted" and "base", and returns the logits of both.
  std::pair<std::vector<float>, std::vector<float>> write_runs(const Model& model,
                                                               LoraConfig lora = {.rank = 3, .alpha = 2}) {
    Config config = config_with(model);
    write_adapted(config, path("base"));
    config.model.lora = lora;
    checkpoint_ = write_adapted(config, path("adapted"));
    return {logits_of(open("adapted")), logits_of(open("base"))};
  }
  std::string merge_error() {
    Session session = open("base");
    return error_of([&] { merge_peft_adapter(session, path("peft").string()); });
  }
  void change_config(const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json j = json_in(path("peft") / kPeftConfig);
    change(j);
    replace_text(path("peft") / kPeftConfig, j.dump());
  }

  TempFolder folder_;
  fs::path checkpoint_;
};

TEST_F(Peft, MergedExportsComputeWhatTheRunDoes) {
  for (const char* name : {"Llama", "Qwen2", "Olmo2", "Gemma2", "Gpt2"}) {
    const auto [adapted, base] = write_runs(model_named(name));
    const double scale = farthest(adapted, std::vector<float>(adapted.size()));
    EXPECT_GT(farthest(adapted, base), 0.01 * scale) << name;
    export_to_hf(path("adapted").string(), path("merged").string(), {.merge = true});
    import_from_hf(path("merged").string(), path("again").string(), {});
    EXPECT_EQ(read_manifest(first_checkpoint(path("again"))).tensors.size(),
              read_manifest(path("base") / "checkpoints" / checkpoint_name(7)).tensors.size());
    EXPECT_LE(farthest(adapted, logits_of(open("again"))), kTolerance * scale) << name;
    for (const char* made : {"base", "adapted", "merged", "again"}) fs::remove_all(path(made));
  }
}

TEST_F(Peft, FilesHoldTheAdapter) {
  write_runs(model_named("Llama"), {.rank = 3, .alpha = 2, .targets = {"wv", "wo", "down"}, .dropout = 0.25});
  const Exported e = export_to_hf(path("adapted").string(), path("peft").string(), {});
  EXPECT_TRUE(e.adapter);
  EXPECT_EQ(e.tensors, 2u * 3 * 2);
  const nlohmann::json j = json_in(path("peft") / kPeftConfig);
  EXPECT_EQ(j.at("peft_type"), "LORA");
  EXPECT_EQ(j.at("r"), 3);
  EXPECT_EQ(j.at("lora_alpha"), 2);
  EXPECT_EQ(j.at("lora_dropout"), 0.25);
  EXPECT_EQ(j.at("target_modules"), nlohmann::json({"down_proj", "o_proj", "v_proj"}));
  const Safetensors file(path("peft") / kPeftWeights);
  EXPECT_EQ(file.names().size(), 12u);
  EXPECT_FALSE(fs::exists(path("peft") / "config.json"));
  const Manifest saved = read_manifest(checkpoint_);
  for (const auto& [theirs, ours] : {std::pair{"layers.1.self_attn.v_proj.lora_A", "1.attention.wv.lora_a"},
                                     {"layers.1.self_attn.v_proj.lora_B", "1.attention.wv.lora_b"},
                                     {"layers.0.mlp.down_proj.lora_A", "0.mlp.down.lora_a"},
                                     {"layers.0.self_attn.o_proj.lora_B", "0.attention.wo.lora_b"}}) {
    const Shape& shape = saved.tensors.at(str("model.blocks.", ours, ".weight")).global_shape;
    const Tensor want = read_tensor(checkpoint_, saved, str("model.blocks.", ours, ".weight"), {{0, 0}, shape});
    const auto* values = want.data<float>();
    EXPECT_EQ(file.values(str("base_model.model.model.", theirs, ".weight")),
              std::vector<float>(values, values + want.numel()))
        << theirs;
  }
}

TEST_F(Peft, AnAdapterIsMergedAfterLoading) {
  for (const char* name : {"Llama", "Qwen3", "Gemma3"}) {
    const auto [adapted, base] = write_runs(model_named(name));
    export_to_hf(path("adapted").string(), path("peft").string(), {});
    const double scale = farthest(adapted, std::vector<float>(adapted.size()));
    const auto merged = [&] {
      Session session = open("base");
      merge_peft_adapter(session, path("peft").string());
      return logits_of(session);
    };
    EXPECT_LE(farthest(adapted, merged()), kTolerance * scale) << name;
    // rsLoRA divides alpha by the root of the rank.
    change_config([](nlohmann::json& j) { j["use_rslora"] = true, j["lora_alpha"] = 2 / std::sqrt(3.0); });
    EXPECT_LE(farthest(adapted, merged()), kTolerance * scale) << name;
    change_config([](nlohmann::json& j) { j["lora_alpha"] = 9; });
    EXPECT_GT(farthest(adapted, merged()), 100 * kTolerance * scale) << name;
    for (const char* made : {"base", "adapted", "peft"}) fs::remove_all(path(made));
  }
}

TEST_F(Peft, AdaptersThatCannotBeMergedAreRefused) {
  write_runs(model_named("Llama"));
  EXPECT_PRED2(contains, merge_error(), "has no adapter_config.json");
  export_to_hf(path("adapted").string(), path("peft").string(), {});
  const std::string config = read_text(path("peft") / kPeftConfig);
  for (const auto& [key, value, problem] : std::vector<std::tuple<std::string, nlohmann::json, std::string>>{
           {"peft_type", "IA3", "peft_type: expected \"LORA\", got \"IA3\""},
           {"use_dora", true, "use_dora: expected none, got true"},
           {"bias", "all", "bias: expected \"none\""},
           {"init_lora_weights", "pissa", "init_lora_weights: expected true, false, "},
           {"modules_to_save", {"lm_head"}, "modules_to_save: expected none, got [\"lm_head\"]"},
           {"lora_alpha", "16", "lora_alpha: expected a number"}}) {
    change_config([&](nlohmann::json& j) { j[key] = value; });
    EXPECT_PRED2(contains, merge_error(), problem);
    replace_text(path("peft") / kPeftConfig, config);
  }
  EXPECT_EQ(merge_error(), "");
  const auto with_tensors = [&](const std::vector<OutputTensor>& tensors, float value = 1) {
    fs::create_directories(path("part"));
    write_safetensors(path("part"), tensors, {}, [&](std::size_t i) {
      std::int64_t n = 1;
      for (const std::int64_t d : tensors[i].shape) n *= d;
      return std::vector<float>(static_cast<std::size_t>(n), value);
    });
    fs::remove(path("peft") / kPeftWeights);
    fs::rename(path("part") / kSafetensorsName, path("peft") / kPeftWeights);
    return merge_error();
  };
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  EXPECT_PRED2(contains, with_tensors({{q + ".lora_A.weight", {2, 64}}}), "has no tensor " + q + ".lora_B.weight");
  EXPECT_PRED2(contains, with_tensors({{q + ".lora_A.weight", {2, 64}}, {q + ".lora_B.weight", {64, 3}}}),
               "do not fit");
  EXPECT_PRED2(contains, with_tensors({{"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", {2, 64}}}),
               "not a matrix of a linear layer of this model");
  const std::vector<OutputTensor> pair = {{q + ".lora_A.weight", {2, 64}}, {q + ".lora_B.weight", {64, 2}}};
  EXPECT_PRED2(contains, with_tensors(pair, std::numeric_limits<float>::quiet_NaN()), "not finite");
  EXPECT_EQ(with_tensors(pair), "");
}

TEST_F(Peft, ExportsThatCannotWorkAreRefused) {
  write_runs(model_named("Gpt2"));
  const auto hf = [&](const char* run, bool merge) {
    return error_of([&] { export_to_hf(path(run).string(), path("out").string(), {.merge = merge}); });
  };
  EXPECT_PRED2(contains, hf("adapted", false), "Export merged weights: --merge");
  EXPECT_PRED2(contains, hf("base", true), "has no adapters (model.lora)");
  EXPECT_FALSE(fs::exists(path("out")));
  const auto gguf = [&](const char* run, bool merge) {
    return error_of([&] { export_to_gguf(path(run).string(), path("out.gguf").string(), {.merge = merge}); });
  };
  EXPECT_PRED2(contains, gguf("adapted", false), "Pass --merge");
  EXPECT_PRED2(contains, gguf("base", true), "has no adapters (model.lora)");
}

}  // namespace
}  // namespace ring::test
