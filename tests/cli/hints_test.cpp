// Answers to settings that are named as in other programs (cli/synonyms.cpp).
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "cli/settings.h"
#include "cli/synonyms.h"
#include "core/check.h"
#include "core/fields.h"
#include "core/fields_parse.h"
#include "engine/config.h"

namespace ring {
namespace {

// Returns the message of the error that refuses settings, "" if they are accepted.
std::string hint_for(const std::vector<std::string>& overrides) {
  try {
    Config config;
    std::vector<std::string> all = {"data.path=a.h5", "train.steps=1"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    override_config(config, all, config_aliases());
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
std::string hint_for(const std::string& override) { return hint_for(std::vector{override}); }

std::set<std::string> all_keys() {
  Config config;
  std::vector<std::string> keys;
  config::collect_keys(bind_config(config), "", keys);
  return {keys.begin(), keys.end()};
}

bool plain(std::string_view word) {
  return std::ranges::all_of(word, [](char c) { return !std::isupper(static_cast<unsigned char>(c)) && c != '-'; });
}

TEST(Hints, EveryAnswerIsASettingAndNoWordIs) {
  const std::set<std::string> keys = all_keys();
  std::set<std::string> words;
  for (const auto& [word, key, advice] : config_aliases()->keys) {
    EXPECT_TRUE(key.empty() || keys.contains(std::string(key))) << word << " -> " << key;
    EXPECT_FALSE(key.empty() && advice.empty()) << word;
    EXPECT_TRUE(words.insert(std::string(word)).second) << word << " has two answers";
    EXPECT_TRUE(plain(word)) << word;
    for (const std::string& k : keys)  // the last part of a key may have advice for that key
      EXPECT_FALSE(k != key && (k == word || k.ends_with(str(".", word)))) << word << " is a key: " << k;
  }
}

TEST(Hints, EveryValueIsAChoice) {
  Config config;
  const config::Node root = bind_config(config);
  for (const auto& [key, word, value, advice] : config_aliases()->values) {
    const config::Field* field =
        config::find_field(root, key.starts_with("attention") ? str("model.", key) : std::string(key));
    ASSERT_TRUE(field && field->node.kind == config::Kind::choice) << key;
    EXPECT_EQ(std::ranges::count(field->node.choices, value), 1) << key << " " << value;
    EXPECT_EQ(std::ranges::count(field->node.choices, word), 0) << key << " " << word;
    EXPECT_TRUE(plain(word)) << word;
  }
}

// The words are given without a section, in a section that exists, and in a section of another program.
TEST(Hints, WordsOfOtherProgramsAreTranslated) {
  const std::map<std::string, std::vector<std::string>> meant = {
      {"optimizer.lr", {"learning_rate", "lr"}},
      {"model.width", {"hidden_size", "n_embd", "d_model"}},
      {"model.layers", {"n_layer", "num_layers", "num_hidden_layers"}},
      {"model.heads", {"n_head", "num_heads", "num_attention_heads"}},
      {"model.kv_heads", {"num_key_value_heads", "n_kv_heads", "num_query_groups", "group_query_attention"}},
      {"model.mlp_width", {"intermediate_size", "ffn_hidden_size"}},
      {"model.context", {"block_size", "seq_len", "seq_length", "max_seq_len", "context_length"}},
      {"train.steps", {"max_steps", "max_iters", "train_iters"}},
      {"optimizer.clip", {"grad_clip", "clip_grad", "max_grad_norm"}},
      {"schedule.kind", {"lr_scheduler_type", "decay_type"}},
      {"train.micro_batch", {"gradient_accumulation_steps", "micro_batch_size", "per_device_train_batch_size"}},
      {"train.batch_size", {"global_batch_size"}},
      {"train.precision", {"dtype", "bf16", "precision"}},
      {"checkpoint.interval", {"save_every", "save_steps", "save_interval"}},
      {"train.eval_interval", {"eval_steps", "eval_interval"}},
      {"schedule.warmup_steps", {"warmup_iters", "warmup_steps"}},
      {"schedule.final_lr", {"min_lr"}},
      {"optimizer.beta1", {"beta1", "adam_beta1"}},
      {"optimizer.beta2", {"beta2", "adam_beta2"}},
      {"optimizer.groups", {"param_groups", "parameter_groups"}},
      {"optimizer.muon.iterations", {"ns_steps"}},
      {"model.rope.theta", {"rope_theta"}},
      {"model.lora.rank", {"lora_r"}},
      {"model.tied_embeddings", {"tie_word_embeddings"}},
      {"model.vocab_size", {"vocab_size"}},
      {"run.seed", {"seed", "random_seed"}},
      {"run.directory", {"output_dir", "out_dir", "save", "dump_folder"}},
      {"schedule.final_weight_decay", {"end_weight_decay", "end-weight-decay"}},
      {"parallel.zero", {"zero_stage", "fsdp"}},
      {"parallel.dp", {"data_parallel", "data_parallel_size", "dp_size"}},
      {"parallel.cp", {"context_parallel", "context_parallel_size", "cp_degree"}},
      {"parallel.tp", {"tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size", "tp_size"}},
      {"parallel.pp", {"pipeline_parallel", "pipeline_parallel_size", "pipeline_model_parallel_size"}}};
  const std::set<std::string> keys = all_keys();
  for (const auto& [key, words] : meant)
    for (const std::string& word : words)
      for (const std::string section : {"", "model.", "train.", "optimizer.", "training."}) {
        if (keys.contains(section + word)) continue;
        const std::string error = hint_for(section + word + "=2");
        // A section of another program is reported before a key that is spelled like ours.
        if (section == "training." && error.ends_with("did you mean train?")) continue;
        EXPECT_NE(error.find("did you mean " + key + "?"), std::string::npos) << section << word << ": " << error;
      }
}

TEST(Hints, WordsMayNeedTheirSection) {
  EXPECT_EQ(hint_for("checkpoint.every=4"),
            "command line: checkpoint.every=4: unknown key; did you mean checkpoint.interval?");
  EXPECT_EQ(hint_for("parallel.tensor_parallel=2"),
            "command line: parallel.tensor_parallel=2: unknown key; did you mean parallel.tp?");
}

// Words of Axolotl, torchtitan and Megatron-LM that have no key here get advice.
TEST(Hints, WordsWithoutAKeyGetAdvice) {
  EXPECT_NE(hint_for("val_set_size=0.05").find("data prepare --validation-fraction"), std::string::npos);
  EXPECT_NE(hint_for("checkpoint.folder=x").find("did you mean run.directory?"), std::string::npos);
  EXPECT_NE(hint_for("train_on_inputs=false").find("only the assistant's messages"), std::string::npos);
  EXPECT_NE(hint_for("num_experts=8").find("mixture of experts"), std::string::npos);
  EXPECT_NE(hint_for("gradient_accumulation_steps=40").find("train.batch_size sequences, train.micro_batch"),
            std::string::npos);
  EXPECT_NE(hint_for("model.name=llama3").find("model.layers"), std::string::npos);
  EXPECT_NE(hint_for("data_parallel_shard_degree=8").find("parallel.zero? 3 is FSDP"), std::string::npos);
}

TEST(Hints, ErrorsForNumbersWithLettersSuggestTheNumber) {
  EXPECT_NE(hint_for("model.context=128K").find("got 128K. Write 128e3, or 131072"), std::string::npos);
  EXPECT_NE(hint_for("train.steps=10k").find("Write 10e3"), std::string::npos);
  EXPECT_NE(hint_for("train.tokens=1.5B").find("Write 1.5e9"), std::string::npos);
  const std::pair<const char*, const char*> meant[] = {
      {"model.context=128Ki", "131072"},  {"model.context=131_072", "131072"},  {"model.context=2^17", "131072"},
      {"model.context=1.5Mi", "1572864"}, {"train.tokens=1T", "1e12"},          {"train.tokens=1.5T", "1.5e12"},
      {"train.tokens=1G", "1e9"},         {"model.dropout=5%", "0.05"},         {"checkpoint.minutes=30m", "30"},
      {"checkpoint.minutes=2h", "120"},   {"train.minutes=90s", "1.5"},         {"train.minutes=1d", "1440"},
      {"run.tuning_seconds=2min", "120"}, {"optimizer.lr=2^-10", "0.000976562"}};
  for (const auto& [setting, number] : meant)
    EXPECT_TRUE(hint_for(setting).ends_with(str(". Write ", number))) << setting << ": " << hint_for(setting);
  for (const char* setting :
       {"train.steps=ten", "train.steps=5%", "train.steps=2^", "train.steps=1.5", "train.steps=_"})
    EXPECT_EQ(hint_for(setting).find("Write"), std::string::npos) << setting << ": " << hint_for(setting);
}

// The suggested setting accepts a value.
TEST(Hints, APatternGivenAsAKindSuggestsBlockSparse) {
  for (const char* pattern :
       {"content", "learned", "importance", "local_global", "strided", "hierarchical", "random"}) {
    const std::string said = hint_for(str("model.attention.kind=", pattern));
    EXPECT_NE(said.find("did you mean block_sparse?"), std::string::npos) << said;
    // The advised settings are accepted.
    const std::size_t begin = said.find("model.attention={"), end = said.find("}]}", begin) + 3;
    EXPECT_EQ(hint_for(said.substr(begin, end - begin)), "");
  }
}

TEST(Hints, TomlIsRefused) {
  const std::string file = std::filesystem::temp_directory_path() / str("ringmaster_hints_", ::getpid(), ".toml");
  // A value that cannot be part of the path, which contains the process id.
  std::ofstream(file) << "[model]\nactivation = 'unrelated'\n[train]\nsteps = 3\n";
  try {
    load_settings(file, {});
    ADD_FAILURE();
  } catch (const Error& e) {
    const std::string said = e.what();
    EXPECT_NE(said.find(file + ": expected settings"), std::string::npos) << said;
    EXPECT_NE(said.find("YAML, got TOML"), std::string::npos) << said;
    EXPECT_EQ(said.find("unrelated"), std::string::npos) << "a value of no key that the message is about: " << said;
  }
  std::filesystem::remove(file);
}

// What pipeline stages cannot do is refused with a setting that can.
TEST(Hints, PipelineStagesRefuseOtherSettings) {
  EXPECT_EQ(hint_for("parallel.pp=2"), "");
  const std::pair<const char*, const char*> refused[] = {
      {"train.linears=fp8_blocks", "supports train.linears: bf16, but it is fp8_blocks. Set it to bf16"},
      {"train.diagnostics_interval=5", "Set train.diagnostics_interval: 0"},
      {"train.activation_offload=true", "train.activation_offload is true. Set it to auto or false"},
      {"parallel.tp=auto", "Set parallel.cp, .tp and .zero to numbers"}};
  for (const auto& [setting, text] : refused) {
    const std::string said = hint_for(std::vector<std::string>{"parallel.pp=2", setting});
    EXPECT_NE(said.find("parallel.pp: 2 "), std::string::npos) << setting << ": " << said;
    EXPECT_NE(said.find(text), std::string::npos) << setting << ": " << said;
  }
}

// Settings that weights on the host do not support are refused, with a message that names a setting that works.
TEST(Hints, WeightsOnTheHostRefuseOtherSettings) {
  EXPECT_EQ(hint_for("optimizer.offload=weights"), "");
  const std::pair<const char*, const char*> refused[] = {
      {"train.linears=fp8_blocks", "supports train.linears: bf16, but it is fp8_blocks. Set it to bf16"},
      {"parallel.pp=2", "but parallel.pp is 2. Set optimizer.offload to all, or parallel.pp to 1"},
      {"train.ema=0.9", "train.ema: requires the weights on the device"},
      {"train.diagnostics_interval=5", "train.diagnostics_interval: requires the weights on the device"},
      {"parallel.local_steps=5", "parallel.local_steps: requires the weights on the device"}};
  for (const auto& [setting, text] : refused) {
    const std::string said = hint_for(std::vector<std::string>{"optimizer.offload=weights", setting});
    EXPECT_NE(said.find("optimizer.offload: weights "), std::string::npos) << setting << ": " << said;
    EXPECT_NE(said.find(text), std::string::npos) << setting << ": " << said;
  }
}

TEST(Hints, AWordForASectionSuggestsOneOfItsKeys) {
  const std::string meant = "did you mean a key of data, such as data.path?";
  EXPECT_EQ(hint_for("dataset=x"), "command line: dataset=x: unknown key; " + meant);
  EXPECT_EQ(hint_for("dta=x"), "command line: dta=x: unknown key; " + meant);
  EXPECT_EQ(hint_for("data.dataset=x"),
            "command line: data.dataset=x: unknown key; did you mean data.path? It is a corpus (.h5) that 'ringmaster "
            "data prepare' makes from text.");
  EXPECT_EQ(hint_for("data.path=x"), "");
  EXPECT_EQ(hint_for("data=x"),
            "command line: data=x: expected a section of `key: value`, got x; set one of its keys, such as data.path");
  const auto in_file = [](const std::string& text) {
    try {
      Config config;
      load_config_text(config, text, "my.yaml", {}, config_aliases());
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_TRUE(in_file("dataset: x\n").ends_with("my.yaml:1: dataset: unknown key; " + meant));
  EXPECT_TRUE(in_file("dataset:\n  path: x\n").ends_with("my.yaml:1: dataset: unknown key; did you mean data?"));
}

TEST(Hints, ErrorsInAFileNameTheLine) {
  try {
    Config config;
    load_config_text(config, "data: {path: a.h5}\nmodel:\n  n_embd: 64\ntrain: {steps: 1}\nepochs: 3\n", "my.yaml", {},
                     config_aliases());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "my.yaml:3: model.n_embd: unknown key; did you mean model.width?\n"
              "my.yaml:5: epochs: unknown key; did you mean train.epochs?");
  }
}

TEST(Hints, ValuesOfOtherProgramsAreTranslated) {
  EXPECT_EQ(hint_for("run.device=gpu"),
            "command line: run.device=gpu: expected one of auto, cpu, cuda, got gpu; did you mean cuda?");
  EXPECT_EQ(hint_for("optimizer.kind=lion"),
            "command line: optimizer.kind=lion: expected one of adamw, muon, got lion");
  for (const auto& [given, meant] :
       std::map<std::string, std::string>{{"train.precision=bfloat16", "bf16"},
                                          {"train.precision=FP16", "bf16"},
                                          {"train.recompute=selective", "none"},
                                          {"model.norm=RMSNorm", "rms"},
                                          {"model.mlp=silu", "swiglu"},
                                          {"model.positions=rotary", "rope"},
                                          {"model.attention.kind=sliding-window", "window"},
                                          {"optimizer.kind=AdamW", "adamw"},
                                          {"parallel.cp_schedule=ulysses", "all_to_all"},
                                          {"parallel.cp_schedule=a2a+p2p", "hybrid"}})
    EXPECT_NE(hint_for(given).find("did you mean " + meant + "?"), std::string::npos) << hint_for(given);
  EXPECT_EQ(hint_for("optimizer.kind=adamw"), "");
}

}  // namespace
}  // namespace ring
