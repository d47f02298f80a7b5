// Exports and imports of weights: bit-identical for every family, from checkpoints of any layout, and without partial
// files after an error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "checkpoint/reshard.h"
#include "checkpoint/safetensors/reader.h"
#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "evaluate/generation_config.h"
#include "evaluate/session.h"
#include "interchange/gguf/export.h"
#include "tests/interchange/published.h"
#include "text/bpe/train.h"

namespace ring::test {
namespace {

Tensor weight(const fs::path& checkpoint, const Manifest& m, const std::string& name) {
  const Shape& shape = m.tensors.at(name).global_shape;
  return read_tensor(checkpoint, m, name, {shape.size() == 2 ? Shape{0, 0} : Shape{0}, shape});
}

// Compares names, shapes and bits.
void expect_equal(const fs::path& a, const fs::path& b) {
  const Manifest one = read_manifest(a), other = read_manifest(b);
  ASSERT_EQ(one.tensors.size(), other.tensors.size());
  for (const auto& [name, t] : one.tensors) {
    ASSERT_TRUE(other.tensors.contains(name)) << name;
    EXPECT_EQ(t.global_shape, other.tensors.at(name).global_shape) << name;
    EXPECT_TRUE(same_bytes(weight(a, one, name), weight(b, other, name))) << name;
  }
}

class HfRoundTrip : public testing::TestWithParam<Model> {};

TEST_P(HfRoundTrip, KeepsEveryBit) {
  const TempFolder folder;
  const Config config = config_with(GetParam());
  const fs::path original = write_run(config, folder.path()), out = folder.path() / "hf", run = folder.path() / "run";
  const Exported e =
      export_to_hf(folder.path().string(), out.string(), {.type = {}, .max_bytes = 40'000, .stopped = {}});
  EXPECT_EQ(e.family, GetParam().family);
  EXPECT_EQ(e.type, FloatType::f32);
  EXPECT_TRUE(fs::exists(out / kSafetensorsIndex));
  const Imported i =
      import_from_hf(out.string(), run.string(), {.tokenizer = "", .shard_bytes = 30'000, .stopped = {}});
  EXPECT_GT(read_manifest(first_checkpoint(run)).files.size(), 1u);
  EXPECT_EQ(i.parameters, e.parameters);
  expect_equal(original, first_checkpoint(run));
  Config read = RunDirectory(run.string()).config();
  read.model.init = config.model.init;
  EXPECT_EQ(to_yaml(read.model), to_yaml(config.model));
}

INSTANTIATE_TEST_SUITE_P(Families, HfRoundTrip, testing::ValuesIn(kModels),
                         [](const auto& test) { return test.param.name; });

TEST_F(Hf, ExportsACheckpointOfAnyLayout) {
  const fs::path three = reshard_checkpoint(original_, path("three"), 3);
  export_to_hf(original_.string(), path("a").string(), {});
  fs::copy(path("run") / "tokenizer.rmt", three / "tokenizer.rmt");
  export_to_hf(three.string(), path("b").string(), {});
  for (const char* name : {"model.safetensors", "config.json", "generation_config.json", "tokenizer.rmt"})
    EXPECT_EQ(read_text(path("a") / name), read_text(path("b") / name)) << name;
}

TEST_F(Hf, RoundsToTheRequestedType) {
  for (const FloatType type : {FloatType::bf16, FloatType::f16}) {
    const std::string out = path(str(safetensors_name(type))).string(), run = out + "-run";
    export_to_hf(path("run").string(), out, {.type = type, .max_bytes = 1 << 30, .stopped = {}});
    import_from_hf(out, run, {});
    const Manifest before = read_manifest(original_), after = read_manifest(first_checkpoint(run));
    for (const auto& [name, t] : after.tensors) {
      EXPECT_EQ(t.dtype, type == FloatType::bf16 ? DType::bf16 : DType::f32) << name;
      const Tensor a = weight(original_, before, name), b = weight(first_checkpoint(run), after, name);
      std::vector<std::byte> rounded(static_cast<std::size_t>(a.numel()) * 2);
      round_to(type, a.data<float>(), static_cast<std::size_t>(a.numel()), rounded.data());
      std::vector<float> expected(static_cast<std::size_t>(a.numel())), found(expected.size());
      widen(type, rounded.data(), expected.size(), expected.data());
      widen(type == FloatType::bf16 ? FloatType::bf16 : FloatType::f32, b.raw(), found.size(), found.data());
      EXPECT_EQ(found, expected) << name;
    }
  }
}

TEST_F(Hf, LeavesNothingBehindOnFailure) {
  EXPECT_TRUE(
      contains(export_error({.type = {}, .max_bytes = 1, .stopped = [] { return true; }}), "stopped by a signal"));
  EXPECT_EQ(entries(), 1u);
  fs::create_directory(path("out"));
  EXPECT_TRUE(contains(export_error(), "exists, and nothing is overwritten")) << export_error();
  EXPECT_TRUE(fs::is_empty(path("out")));
  fs::remove(path("out"));
  export_to_hf(path("run").string(), path("out").string() + "/", {});
  EXPECT_TRUE(contains(import_error({.tokenizer = "", .stopped = [] { return true; }}), "stopped by a signal"));
  EXPECT_TRUE(contains(import_error({.tokenizer = "/no/such", .stopped = {}}), "/no/such"));
  EXPECT_EQ(entries(), 2u);
}

// Rewrites the folder's safetensors file with changed contents.
void rewrite(const fs::path& folder, const std::function<void(std::string& header, std::string& data)>& change) {
  const fs::path file = folder / kSafetensorsName;
  const std::string whole = read_text(file);
  const std::size_t begin = parse_safetensors(whole).bytes;
  std::string header = whole.substr(8, begin - 8), data = whole.substr(begin);
  change(header, data);
  std::uint64_t length = header.size();
  replace_text(file, std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  text.replace(text.find(from), from.size(), to);
}

TEST_F(Hf, NamesTensorsThatDoNotFit) {
  export_to_hf(path("run").string(), path("out").string(), {});
  const std::string config = read_text(path("out") / "config.json");
  std::string other = config;
  replace(other, "\"intermediate_size\": 96", "\"intermediate_size\": 64");
  replace_text(path("out") / "config.json", other);
  EXPECT_TRUE(contains(import_error(), "model.layers.0.mlp.gate_proj.weight is F32[96,64], expected F32[64,64]"))
      << import_error();
  replace_text(path("out") / "config.json", config);
  rewrite(path("out"), [](std::string& header, std::string&) { replace(header, "lm_head.weight", "lm_head.wxight"); });
  EXPECT_TRUE(contains(import_error(), "lm_head.weight is missing")) << import_error();
  rewrite(path("out"), [](std::string& header, std::string&) { replace(header, "lm_head.wxight", "lm_head.weight"); });
  rewrite(path("out"), [](std::string& header, std::string& data) {
    const std::string more =
        str(",\"odd\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[", data.size(), ",", data.size() + 4, "]}}");
    header = header.substr(0, header.rfind('}')) + more;
    data += "1234";
  });
  EXPECT_TRUE(contains(import_error(), "the model in config.json does not use these tensors: odd")) << import_error();
}

TEST_F(Hf, RefusesValuesThatAreNotFinite) {
  export_to_hf(path("run").string(), path("out").string(), {});
  rewrite(path("out"), [](std::string&, std::string& data) { data.replace(4, 4, std::string("\0\0\xc0\x7f", 4)); });
  EXPECT_TRUE(contains(import_error(), "tensor 'model.embed_tokens.weight' contains values that are not finite"))
      << import_error();
  EXPECT_FALSE(fs::exists(path("new")));
}

TEST_F(Hf, ATiedHeadMayBeStoredTwice) {
  export_to_hf(path("run").string(), path("out").string(), {});
  std::string config = read_text(path("out") / "config.json");
  replace(config, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  replace_text(path("out") / "config.json", config);
  EXPECT_TRUE(contains(import_error(), "lm_head.weight differs from model.embed_tokens.weight")) << import_error();
  rewrite(path("out"), [](std::string&, std::string& data) {
    const std::size_t table = 300 * 64 * 4;  // the first and the last tensor of the file
    data.replace(data.size() - table, table, data.substr(0, table));
  });
  EXPECT_EQ(import_error(), "");
}

TEST_F(Hf, OldPrefixesAndBuffersOfGpt2AreAccepted) {
  Config config = config_with(model_named("Gpt2"));
  const fs::path run = path("gpt2");
  fs::create_directories(run);
  const fs::path original = write_run(config, run);
  export_to_hf(run.string(), path("out").string(), {});
  rewrite(path("out"), [](std::string& header, std::string& data) {
    while (header.find("transformer.") != std::string::npos) replace(header, "transformer.", "");
    const std::string more = str(",\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1,1,2,2],\"data_offsets\":[",
                                 data.size(), ",", data.size() + 4, "]}}");
    header = header.substr(0, header.rfind('}')) + more;
    data += "1234";
  });
  EXPECT_EQ(import_error(), "");
  expect_equal(original, first_checkpoint(path("new")));
}

TEST_F(Hf, WithoutATokenizerNoTextCanBeGenerated) {
  export_to_hf(path("run").string(), path("out").string(), {});
  EXPECT_EQ(open_session(path("run").string(), {.threads = 1, .device = DeviceChoice::cpu}).tokenizer->kind(), "bytes");
  fs::remove(path("out") / "tokenizer.rmt");
  const Imported i = import_from_hf(path("out").string(), path("new").string(), {});
  ASSERT_EQ(i.notes.size(), 1u);
  EXPECT_TRUE(contains(i.notes[0], "--tokenizer FILE")) << i.notes[0];
  const std::string error =
      error_of([&] { open_session(path("new").string(), {.threads = 1, .device = DeviceChoice::cpu}); });
  EXPECT_TRUE(contains(error, "there was no tokenizer with the weights")) << error;
  import_from_hf(path("out").string(), path("with").string(), {.tokenizer = "bytes", .stopped = {}});
  EXPECT_EQ(open_session(path("with").string(), {.threads = 1, .device = DeviceChoice::cpu}).tokenizer->kind(),
            "bytes");
}

// Rotary positions support any context, learned positions only their own.
TEST_F(Hf, TextsMayHaveADifferentContext) {
  const Session s = open_session(path("run").string(), {.threads = 1, .device = DeviceChoice::cpu, .context = 77});
  EXPECT_EQ(s.model->config().context, 77);
  EXPECT_EQ(s.config.model.context, 77);
  const fs::path run = path("gpt2");
  fs::create_directories(run);
  const Config config = config_with(model_named("Gpt2"));
  write_run(config, run);
  EXPECT_EQ(open_session(run.string(), {.threads = 1, .device = DeviceChoice::cpu}).model->config().context,
            config.model.context);
  const std::string error =
      error_of([&] { open_session(run.string(), {.threads = 1, .device = DeviceChoice::cpu, .context = 77}); });
  EXPECT_TRUE(contains(error, str("--context: 77 tokens, but this model has learned its ", config.model.context)))
      << error;
}

TEST_F(Hf, ATokenizerThatDoesNotFitTheModelIsRefused) {
  export_to_hf(path("run").string(), path("out").string(), {});
  std::string many;
  for (int c = 0x100; c < 0x100 + 400; ++c)
    many += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  save_tokenizer(*chars_tokenizer(many), path("many.rmt").string());
  EXPECT_TRUE(contains(import_error({.tokenizer = path("many.rmt").string(), .stopped = {}}),
                       "has 400 tokens, but the model has only 300"))
      << import_error();
}

TEST_F(Hf, EndTokensAndSamplingAreImportedAndExported) {
  export_to_hf(path("run").string(), path("out").string(), {});
  const nlohmann::json published = {{"bos_token_id", 5}, {"eos_token_id", {10, 256}}, {"pad_token_id", 3},
                                    {"do_sample", true}, {"temperature", 0.6},        {"top_p", 0.9},
                                    {"top_k", 20},       {"repetition_penalty", 1.1}};
  fs::remove(path("out") / "generation_config.json");
  write_text(path("out") / "generation_config.json", "\xEF\xBB\xBF" + published.dump());
  EXPECT_TRUE(import_from_hf(path("out").string(), path("new").string(), {}).notes.empty());
  const GenerationConfig g = generation_config_of(origin_of(find_checkpoint(path("new").string())));
  EXPECT_EQ(g.ends, (std::vector<std::int32_t>{10, 256}));
  Sampling s;
  g.apply(s);
  EXPECT_EQ(s.temperature, 0.6);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_TRUE(g.unsupported.empty());
  EXPECT_EQ(
      parse_generation_config(
          R"({"min_p": 0.1, "typical_p": 1.0, "num_beams": 4, "suppress_tokens": [], "eta_cutoff": null})", "f", 9)
          .unsupported,
      (std::vector<std::string>{"min_p 0.1", "num_beams 4"}));
  // A run that starts from these weights also has the file.
  fs::create_directories(path("tuned"));
  const RunDirectory tuned(path("tuned").string());
  copy_kept_files(tuned, first_checkpoint(path("new")).string());
  EXPECT_EQ(json_in(path("tuned") / "generation_config.json"), published);
  copy_kept_files(tuned, "");
  EXPECT_FALSE(fs::exists(path("tuned") / "generation_config.json"));
  export_to_hf(path("new").string(), path("again").string(), {});
  nlohmann::json again = json_in(path("again") / "generation_config.json");
  EXPECT_EQ(again.at("eos_token_id"), (nlohmann::json{256, 10}));
  EXPECT_EQ(json_in(path("again") / "config.json").at("eos_token_id"), (nlohmann::json{256, 10}));
  again["eos_token_id"] = published.at("eos_token_id");
  EXPECT_EQ(again, published);
}

TEST_F(Hf, EndTokensOfConfigJsonCountIfNoOtherFileHasThem) {
  export_to_hf(path("run").string(), path("out").string(), {});
  fs::remove(path("out") / "generation_config.json");
  nlohmann::json config = json_in(path("out") / "config.json");
  config["eos_token_id"] = {256, 7};
  replace_text(path("out") / "config.json", "\xEF\xBB\xBF" + config.dump());
  import_from_hf(path("out").string(), path("new").string(), {});
  const auto ends = [&] { return generation_config_of(origin_of(find_checkpoint(path("new").string()))).ends; };
  EXPECT_EQ(ends(), (std::vector<std::int32_t>{256, 7}));
  fs::remove_all(path("new"));
  write_text(path("out") / "generation_config.json", R"({"temperature": 0.5})");
  import_from_hf(path("out").string(), path("new").string(), {});
  EXPECT_EQ(ends(), (std::vector<std::int32_t>{256, 7}));
}

TEST_F(Hf, AFolderThatCannotBeReadIsNotTakenForAMissingOne) {
  fs::create_symlink("loop", path("loop"));
  const std::string error = error_of([&] { import_from_hf(path("loop").string(), path("new").string(), {}); });
  EXPECT_TRUE(contains(error, "cannot read " + path("loop").string() + ": Too many levels of symbolic links")) << error;
  EXPECT_FALSE(contains(error, "does not exist")) << error;
}

TEST_F(Hf, AGenerationConfigThatCannotBeUsedIsNamed) {
  export_to_hf(path("run").string(), path("out").string(), {});
  nlohmann::json config = json_in(path("out") / "config.json");
  config["eos_token_id"] = {256, 7};
  for (const char* key : {"bos_token_id", "pad_token_id"}) config.erase(key);
  replace_text(path("out") / "config.json", config.dump());
  const std::pair<const char*, const char*> cases[] = {{R"({"eos_token_id": [256, 300]})", "eos_token_id: 300"},
                                                       {R"({"eos_token_id": "</s>"})", "eos_token_id"},
                                                       {R"({"temperature": -1})", "temperature: -1"},
                                                       {R"({"top_k": 2.5})", "top_k: 2.5"},
                                                       {"[]", "expected an object"},
                                                       {"{", "cannot be read as JSON"}};
  for (const auto& [text, part] : cases) {
    replace_text(path("out") / "generation_config.json", text);
    const Imported i = import_from_hf(path("out").string(), path("new").string(), {});
    ASSERT_EQ(i.notes.size(), 1u) << text;
    EXPECT_TRUE(contains(i.notes[0], "generation_config.json") && contains(i.notes[0], part)) << i.notes[0];
    EXPECT_EQ(json_in(path("new") / "generation_config.json"), (nlohmann::json{{"eos_token_id", {256, 7}}}))
        << "the tokens of config.json still count";
    fs::remove_all(path("new"));
  }
}

TEST_F(Hf, ATokenizerThatCannotBeReadIsRefused) {
  export_to_hf(path("run").string(), path("out").string(), {});
  fs::remove(path("out") / "tokenizer.rmt");
  write_text(path("out") / "tokenizer.json", R"({"model": {"type": "BPE", "vo)");
  for (const char* part : {"tokenizer.json", "--tokenizer FILE", "--tokenizer none"})
    EXPECT_TRUE(contains(import_error(), part)) << import_error();
  EXPECT_FALSE(fs::exists(path("new")));
  EXPECT_EQ(import_error({.tokenizer = kNoTokenizer, .stopped = {}}), "");
  EXPECT_FALSE(fs::exists(path("new") / "tokenizer.rmt"));
  save_tokenizer(*bytes_tokenizer(), (path("run") / "again.rmt").string());
  fs::remove_all(path("new"));
  EXPECT_EQ(import_error({.tokenizer = (path("run") / "again.rmt").string(), .stopped = {}}), "");
}

#ifdef RING_WITH_UTF8PROC

// The base model ends texts with one token, and was tuned to end answers with another: an export stops at both.
TEST_F(Hf, ExportsOfATunedModelStopAtTheEndOfAnswers) {
  const auto base = bpe::train_byte_bpe([](const auto& take) { take("ab ab ab ab"); }, {.vocab_size = 300});
  nlohmann::json file = nlohmann::json::parse(base->plain_file());
  const std::int64_t first = base->vocab_size();
  for (const char* name : {"<|im_start|>", "<|im_end|>"})
    file["added_tokens"].push_back({{"id", first + (name[5] == 'e')}, {"content", name}, {"special", true}});
  save_tokenizer(*json_tokenizer(file.dump(), "t.json"), (path("run") / "tokenizer.rmt").string());
  const chat::Format format{chat::named_template("chatml"), {}};
  write_text(RunDirectory(path("run").string()).chat_template_file(), format.to_json());
  EXPECT_TRUE(export_to_hf(path("run").string(), path("out").string(), {}).notes.empty());
  const nlohmann::json both = {0, first + 1};
  EXPECT_EQ(json_in(path("out") / "generation_config.json").at("eos_token_id"), both);
  EXPECT_EQ(json_in(path("out") / "config.json").at("eos_token_id"), both);
  export_to_gguf(path("run").string(), path("out.gguf").string(), {});
  const std::string gguf = read_text(path("out.gguf"), 1 << 30);
  const std::string key = "tokenizer.ggml.eot_token_id";  // followed by its type, u32, and the value
  const std::size_t at = gguf.find(key);
  ASSERT_NE(at, std::string::npos);
  const std::string value{'\4', 0, 0, 0, static_cast<char>((first + 1) & 255), static_cast<char>((first + 1) >> 8),
                          0,    0};
  EXPECT_EQ(gguf.substr(at + key.size(), 8), value);
}

TEST_F(Hf, ATokenizerJsonIsExportedUnchanged) {
  const auto t = bpe::train_byte_bpe([](const auto& take) { take("ab ab ab ab"); }, {.vocab_size = 300});
  save_tokenizer(*t, (path("run") / "tokenizer.rmt").string());
  export_to_hf(path("run").string(), path("out").string(), {});
  EXPECT_EQ(read_text(path("out") / "tokenizer.json"), t->plain_file());
  const auto said = nlohmann::json::parse(read_text(path("out") / "tokenizer_config.json"));
  EXPECT_EQ(said.at("tokenizer_class"), "PreTrainedTokenizerFast");
  EXPECT_EQ(said.at("eos_token"), "<|endoftext|>");
  EXPECT_EQ(nlohmann::json::parse(read_text(path("out") / "config.json")).at("eos_token_id"), 0);
  fs::remove(path("out") / "tokenizer.rmt");  // published folders do not have this file
  EXPECT_TRUE(import_from_hf(path("out").string(), path("new").string(), {}).notes.empty());
  EXPECT_EQ(open_session(path("new").string(), {.threads = 1, .device = DeviceChoice::cpu}).tokenizer->hash(),
            t->hash());
}

TEST_F(Hf, ATokenizerConfigIsExportedAsItWasImported) {
  const auto t = bpe::train_byte_bpe([](const auto& take) { take("ab ab ab ab"); }, {.vocab_size = 300});
  save_tokenizer(*t, (path("run") / "tokenizer.rmt").string());
  export_to_hf(path("run").string(), path("out").string(), {});
  const nlohmann::json published = {
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"eos_token", {{"content", "<|endoftext|>"}, {"lstrip", false}}},
      {"pad_token", "a"},
      {"padding_side", "left"},
      {"model_max_length", 1e30},
      {"chat_template",
       {{{"name", "default"}, {"template", "{{ messages }}"}}, {{"name", "tools"}, {"template", "{{ tools }}"}}}}};
  const auto import_with = [&](const nlohmann::json& config, const char* run) {
    fs::remove(path("out") / "tokenizer_config.json");
    write_text(path("out") / "tokenizer_config.json", "\xEF\xBB\xBF" + config.dump());
    for (const char* own : {"tokenizer.rmt", "chat_template.json"}) fs::remove(path("out") / own);
    import_from_hf(path("out").string(), path(run).string(), {});
  };
  const auto exported = [&](const char* run) {
    fs::remove_all(path("again"));
    export_to_hf(path(run).string(), path("again").string(), {});
    return json_in(path("again") / "tokenizer_config.json");
  };
  import_with(published, "new");
  EXPECT_EQ(exported("new"), published);

  // A different template and a longer context replace the imported ones. The other keys stay.
  write_text(RunDirectory(path("new").string()).chat_template_file(), chat::Format{"{{ 1 }}", {}}.to_json());
  nlohmann::json expected = published;
  expected["chat_template"] = "{{ 1 }}";
  EXPECT_EQ(exported("new"), expected);
  nlohmann::json shorter = published;
  shorter.erase("chat_template");
  shorter["model_max_length"] = 1;
  import_with(shorter, "short");
  const nlohmann::json longer = exported("short");
  EXPECT_GT(longer.at("model_max_length"), 1);
  shorter["model_max_length"] = longer.at("model_max_length");
  EXPECT_EQ(longer, shorter);

  // A run keeps the file only while its tokenizer is the imported one.
  fs::create_directories(path("tuned"));
  const RunDirectory tuned(path("tuned").string());
  save_tokenizer(*t, tuned.tokenizer_file());
  copy_kept_files(tuned, first_checkpoint(path("new")).string());
  EXPECT_EQ(json_in(path("tuned") / kTokenizerConfigFile), published);
  save_tokenizer(*bytes_tokenizer(), tuned.tokenizer_file());
  copy_kept_files(tuned, first_checkpoint(path("new")).string());
  EXPECT_FALSE(fs::exists(path("tuned") / kTokenizerConfigFile));
}

TEST_F(Hf, ChatTemplatesAreExportedAndImported) {
  const auto t = bpe::train_byte_bpe([](const auto& take) { take("ab ab ab ab"); }, {.vocab_size = 300});
  save_tokenizer(*t, (path("run") / "tokenizer.rmt").string());
  const chat::Format format{"{{ messages }}\n", {{"bos_token", "a"}, {"eos_token", "<|endoftext|>"}}};
  write_text(RunDirectory(path("run").string()).chat_template_file(), format.to_json());
  export_to_hf(path("run").string(), path("out").string(), {});
  const auto said = nlohmann::json::parse(read_text(path("out") / "tokenizer_config.json"));
  EXPECT_EQ(said.at("chat_template"), format.source);
  EXPECT_EQ(said.at("bos_token"), "a");
  for (const char* own : {"tokenizer.rmt", "chat_template.json"})
    fs::remove(path("out") / own);  // published folders do not have these files
  EXPECT_TRUE(import_from_hf(path("out").string(), path("new").string(), {}).notes.empty());
  const auto again = chat_format_of(origin_of(find_checkpoint(path("new").string())));
  EXPECT_EQ(again.source, format.source);
  write_text(path("out") / "tokenizer_config.json", R"({"chat_template": 1})");
  const Imported i = import_from_hf(path("out").string(), path("other").string(), {});
  ASSERT_EQ(i.notes.size(), 1u);
  EXPECT_TRUE(contains(i.notes[0], "tokenizer_config.json: chat_template is a JSON number")) << i.notes[0];
  EXPECT_EQ(chat_format_of(origin_of(find_checkpoint(path("other").string()))).source, "");
}

TEST_F(Hf, AnUnsupportedTokenizerJsonIsNamed) {
  export_to_hf(path("run").string(), path("out").string(), {});
  fs::remove(path("out") / "tokenizer.rmt");
  write_text(path("out") / "tokenizer.json", R"({"decoder": {"type": "Fuse"}, "model": {"type": "WordPiece"}})");
  const std::string error = import_error();
  EXPECT_TRUE(contains(error, "tokenizer.json: model.type: \"WordPiece\"")) << error;
  EXPECT_TRUE(contains(error, "--tokenizer FILE")) << error;
}

#endif

}  // namespace
}  // namespace ring::test
