// Reading and writing config.json, and settings that are refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/fields.h"
#include "interchange/hf/config.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {
namespace {

using nlohmann::json;

// A file like published ones: the keys that are needed, some that are not, and null for unset keys.
json llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false, "attention_dropout": 0.0,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "pretraining_tp": 1, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008], "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true})");
}

json qwen3() {
  return json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "rope_scaling": null, "attention_bias": false, "sliding_window": null,
    "use_sliding_window": false, "max_window_layers": 28, "tie_word_embeddings": true})");
}

json gpt2() {
  return json::parse(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768,
    "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_ctx": 1024, "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-05, "n_inner": null, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1})");
}

json gemma3() {
  return json::parse(R"({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262144,
    "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06,
    "max_position_embeddings": 32768, "query_pre_attn_scalar": 256, "rope_theta": 1000000, "rope_scaling": null,
    "rope_local_base_freq": 10000, "sliding_window": 512, "sliding_window_pattern": 6, "attention_bias": false,
    "attn_logit_softcapping": null, "final_logit_softcapping": null})");
}

json olmo3() {
  return json::parse(R"({"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "vocab_size": 100278,
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 8, "num_attention_heads": 32,
    "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 65536, "rms_norm_eps": 1e-06,
    "rope_theta": 500000, "sliding_window": 4096, "attention_bias": false, "rope_scaling": {"rope_type": "yarn",
      "factor": 8.0, "original_max_position_embeddings": 8192, "attention_factor": 1.2079441541679836}})");
}

// Like published files, with the keys of the vision model's positions and of the layers that predict several tokens.
json qwen3_5() {
  return json::parse(R"({"model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 2048,
    "intermediate_size": 6144, "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 256, "hidden_act": "silu", "max_position_embeddings": 262144, "rms_norm_eps": 1e-06,
    "attention_bias": false, "attn_output_gate": true, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
      "mrope_interleaved": true, "mrope_section": [11, 11, 10]}, "tie_word_embeddings": true})");
}

json olmo_hybrid() {
  return json::parse(R"({"architectures": ["OlmoHybridForCausalLM"], "model_type": "olmo_hybrid", "vocab_size": 100352,
    "hidden_size": 3840, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 30,
    "hidden_act": "silu", "max_position_embeddings": 65536, "rms_norm_eps": 1e-06, "attention_bias": false,
    "rope_parameters": {"rope_type": "default", "rope_theta": null}})");
}

PublishedModel parse(const json& j) { return parse_hf_config(j.dump(), "x/config.json"); }

TEST(HfConfig, ReadsLlama) {
  const PublishedModel p = parse(llama());
  EXPECT_EQ(p.family, Family::llama);
  const ModelConfig& m = p.model;
  EXPECT_EQ(m.width, 2048);
  EXPECT_EQ(m.mlp_width, 8192);
  EXPECT_EQ(m.layers, 16);
  EXPECT_EQ(m.heads, 32);
  EXPECT_EQ(m.kv_heads, 8);
  EXPECT_EQ(m.context, 131072);
  EXPECT_EQ(m.norm_eps, 1e-5);
  EXPECT_EQ(m.rope.theta, 500000);
  EXPECT_EQ(m.rope.scaling, RopeScaling::llama3);
  EXPECT_EQ(m.rope.factor, 32);
  EXPECT_EQ(m.rope.original_context, 8192);
  EXPECT_TRUE(m.tied_embeddings);
  EXPECT_EQ(m.biases, Biases::none);
}

TEST(HfConfig, ReadsTheNewFormsOfRope) {
  json j = llama();
  j["rope_parameters"] = j["rope_scaling"];
  j["rope_parameters"]["rope_theta"] = 500000.0;
  j.erase("rope_scaling");
  j.erase("rope_theta");
  EXPECT_EQ(to_yaml(parse(j).model), to_yaml(parse(llama()).model));
  j["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};  // the form before rope_type existed
  j.erase("rope_parameters");
  EXPECT_EQ(parse(j).model.rope.scaling, RopeScaling::linear);
  EXPECT_EQ(parse(j).model.rope.theta, 10000);
}

// If a file has both sections, transformers 5.24 uses rope_scaling, with the rope_theta beside it.
TEST(HfConfig, IfBothSectionsOfRopeAreGivenRopeScalingCounts) {
  json j = llama();
  j["rope_theta"] = 1e6;
  j["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  const RopeConfig rope = parse_hf_config(j.dump(), "config.json").model.rope;
  EXPECT_EQ(rope.scaling, RopeScaling::yarn);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.original_context, 32);
  EXPECT_EQ(rope.theta, 1e6);
  j["rope_scaling"] = json::object();  // an empty section means no scaling
  EXPECT_EQ(parse_hf_config(j.dump(), "config.json").model.rope.scaling, RopeScaling::none);
  j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  EXPECT_NE(error_of([&] { parse_hf_config(j.dump(), "config.json"); }).find("rope_parameters"), std::string::npos);
}

TEST(HfConfig, ReadsYarn) {
  json j = qwen3();
  j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_slow", 2}};
  RopeConfig r = parse(j).model.rope;
  EXPECT_EQ(r.scaling, RopeScaling::yarn);
  EXPECT_EQ(r.factor, 4);
  EXPECT_EQ(r.beta_fast, 32);
  EXPECT_EQ(r.beta_slow, 2);
  EXPECT_EQ(r.original_context, j["max_position_embeddings"]);
  EXPECT_EQ(r.attention_factor, 0);  // 0.1 ln(factor) + 1
  j["rope_scaling"].update({{"original_max_position_embeddings", 32768}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}});
  r = parse(j).model.rope;
  EXPECT_EQ(r.original_context, 32768);
  EXPECT_NEAR(r.attention_factor, 1.0648216254, 1e-9);  // (0.1 ln 4 + 1) / (0.05 ln 4 + 1)
  j["rope_scaling"]["attention_factor"] = 0.8;
  EXPECT_EQ(parse(j).model.rope.attention_factor, 0.8);
}

// In transformers 5.24, the model's key has precedence over that of the section.
TEST(HfConfig, TheOriginalContextBesideTheSectionIsRead) {
  json j = llama();
  j.erase("rope_parameters");
  j["max_position_embeddings"] = 128;
  j["original_max_position_embeddings"] = 32;
  j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(parse(j).model.rope.original_context, 32);
  j["rope_scaling"]["original_max_position_embeddings"] = 64;
  EXPECT_EQ(parse(j).model.rope.original_context, 32);
  j["rope_scaling"].update({{"rope_type", "llama3"}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}});
  EXPECT_EQ(parse(j).model.rope.original_context, 32);
  j["original_max_position_embeddings"] = 129;
  EXPECT_NE(error_of([&] { parse(j); }).find("original_max_position_embeddings: 129"), std::string::npos);
}

// The context is read as in transformers, which ignores all other keys.
TEST(HfConfig, ReadsTheContextOfDynamicScaling) {
  json j = qwen3();
  j["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 17}};
  const ModelConfig m = parse(j).model;
  EXPECT_EQ(m.rope.scaling, RopeScaling::dynamic);
  EXPECT_EQ(m.rope.factor, 2);
  EXPECT_EQ(m.rope.original_context, j["max_position_embeddings"]);
  EXPECT_EQ(m.context, j["max_position_embeddings"]);
  ModelConfig trained = m;
  trained.context = 64;  // shorter than the context of its positions
  const json again = json::parse(hf_config(Family::qwen3, trained.resolved(), FloatType::f32, {}));
  EXPECT_EQ(again["max_position_embeddings"], j["max_position_embeddings"]);
}

TEST(HfConfig, WritesDropoutUnderTheNamesOfTheFamily) {
  const auto written = [](Family family, const json& published) {
    ModelConfig m = parse(published).model;
    m.dropout = 0.125, m.attention_dropout = 0.25;
    return json::parse(hf_config(family, m.resolved(), FloatType::f32, {}));
  };
  EXPECT_EQ(written(Family::llama, llama())["attention_dropout"], 0.25);
  EXPECT_EQ(written(Family::gpt2, gpt2())["attn_pdrop"], 0.25);
  EXPECT_EQ(written(Family::gpt2, gpt2())["resid_pdrop"], 0.125);
}

TEST(HfConfig, ReadsTheKeysOfOtherFamilies) {
  const ModelConfig q = parse(qwen3()).model;
  EXPECT_TRUE(q.qk_norm);
  EXPECT_EQ(q.head_dim, 128);  // the family's own size, which differs from width / heads
  EXPECT_EQ(q.attention.kind, "dense");
  json j = qwen3();
  j.update({{"use_sliding_window", true}, {"sliding_window", 4096}, {"max_window_layers", 26}});
  ASSERT_EQ(parse(j).model.attention_layers.size(), 1u);
  EXPECT_EQ(parse(j).model.attention_layers[0].layers, "26-27");
  EXPECT_EQ(parse(j).model.attention_layers[0].attention.window, 4096);
  json m = llama();
  m.update({{"model_type", "mistral"}, {"architectures", {"MistralForCausalLM"}}});
  EXPECT_EQ(parse(m).model.attention.window, 4096);  // the default of transformers if the key is missing
  m["sliding_window"] = nullptr;
  EXPECT_EQ(parse(m).model.attention.kind, "dense");
  const ModelConfig g = parse(gpt2()).model.resolved();
  EXPECT_EQ(g.mlp_width, 3072);
  EXPECT_EQ(g.biases, Biases::all);
  EXPECT_EQ(g.mlp, Mlp::gelu_tanh);
  EXPECT_TRUE(g.tied_embeddings);
}

TEST(HfConfig, ReadsGemma3) {
  const PublishedModel p = parse(gemma3());
  EXPECT_EQ(p.family, Family::gemma3);
  const ModelConfig& m = p.model;
  EXPECT_EQ(m.norm_place, NormPlace::sandwich);
  EXPECT_TRUE(m.norm_zero_centered);
  EXPECT_TRUE(m.qk_norm);
  EXPECT_EQ(m.mlp, Mlp::geglu_tanh);
  EXPECT_DOUBLE_EQ(m.embedding_scale, std::sqrt(1152.0));
  EXPECT_EQ(m.attention_scale, 0);  // query_pre_attn_scalar is head_dim
  EXPECT_TRUE(m.tied_embeddings);   // the family's default
  EXPECT_EQ(m.rope.theta, 1e6);
  ASSERT_EQ(m.rope_layers.size(), 1u);
  EXPECT_EQ(m.rope_layers[0].layers, "0-4,6-10,12-16,18-22,24-25");
  EXPECT_EQ(m.rope_layers[0].rope.theta, 1e4);
  EXPECT_EQ(m.attention_layers[0].layers, m.rope_layers[0].layers);
  EXPECT_EQ(m.attention_layers[0].attention.window, 512);
  json j = gemma3();
  j["query_pre_attn_scalar"] = 168;
  EXPECT_DOUBLE_EQ(parse(j).model.attention_scale, 1 / std::sqrt(168.0));
}

TEST(HfConfig, ReadsOlmo3) {
  const ModelConfig m = parse(olmo3()).model;
  EXPECT_EQ(m.norm_place, NormPlace::reordered);
  EXPECT_EQ(m.qk_norm_over, QkNormOver::projection);
  EXPECT_EQ(m.attention_layers.at(0).layers, "0-2,4-6");
  EXPECT_EQ(m.rope.scaling, RopeScaling::yarn);  // the rope of dense layers
  EXPECT_EQ(m.rope_layers.at(0).rope, RopeConfig{.theta = 5e5});
}

// transformers 5 has a section for each kind of layer.
TEST(HfConfig, ReadsRopeByKindOfLayer) {
  json j = olmo3();
  const json full = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 7e5}},
             sliding = {{"rope_type", "default"}, {"rope_theta", 3e3}};
  j.erase("rope_theta"), j.erase("rope_scaling");
  j["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", sliding}};
  ModelConfig m = parse(j).model;
  EXPECT_EQ(m.rope, (RopeConfig{.theta = 7e5, .scaling = RopeScaling::linear, .factor = 2}));
  EXPECT_EQ(m.rope_layers.at(0).rope, RopeConfig{.theta = 3e3});
  const json again = json::parse(hf_config(Family::olmo3, m.resolved(), FloatType::f32, {}));
  EXPECT_EQ(again["rope_parameters"], j["rope_parameters"]);
  j["layer_types"] = json::array_t(8, "sliding_attention");  // all layers have the same type
  m = parse(j).model;
  EXPECT_EQ(m.rope.theta, 3e3);
  EXPECT_TRUE(m.rope_layers.empty());
}

TEST(HfConfig, ReadsQwen35) {
  const PublishedModel p = parse(qwen3_5());
  EXPECT_EQ(p.family, Family::qwen3_5);
  const ModelConfig& m = p.model;
  EXPECT_EQ(m.mixers,
            (std::vector{Mixer::gated_delta_net, Mixer::gated_delta_net, Mixer::gated_delta_net, Mixer::attention}));
  EXPECT_EQ(m.gated_delta_net,
            (GatedDeltaNetConfig{.key_heads = 16, .value_heads = 32, .key_width = 128, .value_width = 128}));
  EXPECT_TRUE(m.attention_output_gate && m.norm_zero_centered && m.qk_norm && m.tied_embeddings);
  EXPECT_EQ(m.norm_place, NormPlace::pre);
  EXPECT_EQ(m.rope, (RopeConfig{.theta = 1e7, .partial_rotary_factor = 0.25}));
  json j = qwen3_5();
  for (const char* key :
       {"head_dim", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim", "full_attention_interval", "attn_output_gate"})
    j.erase(key);
  j["rope_parameters"].erase("partial_rotary_factor");
  EXPECT_EQ(to_yaml(parse(j).model), to_yaml(m)) << "these are the defaults of transformers";
  j["layer_types"] = {"full_attention"};
  j["num_hidden_layers"] = 1;
  EXPECT_TRUE(parse(j).model.mixers.empty());
  j["partial_rotary_factor"] = 0.5;  // where older versions have it
  EXPECT_EQ(parse(j).model.rope.partial_rotary_factor, 0.5);
}

TEST(HfConfig, ReadsTheLanguageModelOfQwen35WithImages) {
  json text = qwen3_5();
  text["tie_word_embeddings"] = false;
  const json whole = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                      {"model_type", "qwen3_5"},
                      {"text_config", text},
                      {"tie_word_embeddings", true},
                      {"vision_config", {{"depth", 27}}}};
  EXPECT_EQ(to_yaml(parse(whole).model), to_yaml(parse(qwen3_5()).model));
  json other = whole;
  other["text_config"] = qwen3();
  EXPECT_TRUE(contains(error_of([&] { parse(other); }), "text_config: model_type: \"qwen3\" cannot be imported"));
  other = whole;
  other["quantization_config"] = {{"bits", 4}};
  EXPECT_TRUE(contains(error_of([&] { parse(other); }), "quantization_config: {\"bits\":4} cannot be imported"));
}

TEST(HfConfig, ReadsOlmoHybrid) {
  const PublishedModel p = parse(olmo_hybrid());
  EXPECT_EQ(p.family, Family::olmo_hybrid);
  const ModelConfig& m = p.model;
  EXPECT_EQ(m.norm_place, NormPlace::reordered_attention);
  EXPECT_EQ(m.qk_norm_over, QkNormOver::projection);
  EXPECT_EQ(m.positions, Positions::none);
  EXPECT_EQ(m.norm_eps, 1e-6);
  EXPECT_EQ(m.mixers.size(), 4u);
  EXPECT_EQ(m.gated_delta_net, (GatedDeltaNetConfig{.key_heads = 30,
                                                    .value_heads = 30,
                                                    .key_width = 96,
                                                    .value_width = 192,
                                                    .negative_eigenvalues = true,
                                                    .norm_eps = 1e-5}));
  json j = olmo_hybrid();
  j["num_hidden_layers"] = 3;  // the last layer is then the one with attention
  EXPECT_EQ(parse(j).model.mixers, (std::vector{Mixer::gated_delta_net, Mixer::gated_delta_net, Mixer::attention}));
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(parse(j).model.positions, Positions::rope);
  EXPECT_EQ(parse(j).model.rope.theta, 5e5);
}

TEST(HfConfig, ExportsOfHybridFamiliesNeedTheirSettings) {
  const auto error_with = [](const json& published, const auto& change) {
    ModelConfig m = parse(published).model;
    EXPECT_EQ(error_of([&] { family_of(m.resolved()); }), "");
    change(m);
    return error_of([&] { family_of(m.resolved()); });
  };
  const auto expect = [](const std::string& error, const char* key) {
    EXPECT_TRUE(contains(error, std::string("model.") + key)) << error;
  };
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.attention_output_gate = false; }), "attention_output_gate: fal");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.norm_zero_centered = false; }), "norm_zero_centered: false");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.qk_norm = false; }), "qk_norm: false cannot be exported");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.rope.partial_rotary_factor = 0; }), "rope.partial_rotary_fac");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.rope.scaling = RopeScaling::yarn; }),
         "rope.attention_factor: 0 cannot be exported: Qwen3_5ForCausalLM");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.norm = NormKind::layer; }), "norm: layer cannot be exported");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.positions = Positions::none; }), "positions: none");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.gated_delta_net.negative_eigenvalues = true; }),
         "gated_delta_net.negative_eigenvalues: true cannot be exported: Qwen3_5ForCausalLM");
  expect(error_with(qwen3_5(), [](ModelConfig& m) { m.gated_delta_net.norm_eps = 1e-5; }),
         "gated_delta_net.norm_eps: 1e-05 cannot be exported");
  expect(error_with(olmo_hybrid(), [](ModelConfig& m) { m.gated_delta_net.norm_eps = 0; }),
         "gated_delta_net.norm_eps: 1e-06 cannot be exported: OlmoHybridForCausalLM");
  expect(error_with(olmo_hybrid(), [](ModelConfig& m) { m.attention_output_gate = true; }), "attention_output_gate: t");
  expect(error_with(olmo_hybrid(), [](ModelConfig& m) { m.qk_norm_over = QkNormOver::head; }), "qk_norm_over: head");
  expect(error_with(olmo_hybrid(),
                    [](ModelConfig& m) {
                      m.attention.kind = "window";
                      m.attention.window = 8;
                    }),
         "attention: kind: window cannot be exported: OlmoHybridForCausalLM");
}

TEST(HfConfig, ExportsOfNewerFamiliesNeedTheirSettings) {
  const auto error_with = [](const json& published, const auto& change) {
    ModelConfig m = parse(published).model;
    change(m);
    return error_of([&] { family_of(m.resolved()); });
  };
  const auto expect = [](const std::string& error, const char* key) {
    EXPECT_TRUE(contains(error, std::string("model.") + key)) << error;
  };
  expect(error_with(gemma3(), [](ModelConfig& m) { m.embedding_scale = 1; }), "embedding_scale: 1 cannot be exported");
  expect(error_with(gemma3(), [](ModelConfig& m) { m.norm_zero_centered = false; }), "norm_zero_centered: false");
  expect(error_with(gemma3(), [](ModelConfig& m) { m.attention_scale = 0.3; }), "attention_scale: 0.3");
  expect(error_with(gemma3(), [](ModelConfig& m) { m.rope_layers[0].layers = "0"; }), "rope_layers: layers with win");
  expect(error_with(olmo3(), [](ModelConfig& m) { m.qk_norm_over = QkNormOver::head; }), "qk_norm_over: head");
  expect(error_with(qwen3(), [](ModelConfig& m) { m.logit_soft_cap = 30; }), "logit_soft_cap: 30");
  expect(error_with(gemma3(), [](ModelConfig& m) { m.learned_sinks = true; }), "learned_sinks: true cannot");
  expect(error_with(qwen3(), [](ModelConfig& m) { m.rope.partial_rotary_factor = 0.5; }), "rope.partial_rotary_factor");
  expect(error_with(gpt2(), [](ModelConfig& m) { m.attention_output_gate = true; }), "attention_output_gate: true");
}

struct Refusal {
  std::string name;
  json (*base)();
  json change;
  std::string message;
};
void PrintTo(const Refusal& r, std::ostream* out) { *out << r.name; }

class HfConfigRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(HfConfigRefuses, ByName) {
  json j = GetParam().base();
  j.update(GetParam().change);
  const std::string error = error_of([&] { parse(j); });
  EXPECT_TRUE(contains(error, "x/config.json: " + GetParam().message)) << error;
}

const Refusal kRefusals[] = {
    {"Family", llama, {{"model_type", "gemma3"}}, "model_type: \"gemma3\" cannot be imported: supported are LlamaFor"},
    {"Images",
     llama,
     {{"model_type", "gemma3"}, {"text_config", {{"model_type", "gemma3_text"}}}},
     "model_type: \"gemma3\" cannot be imported: images and audio are not supported"},
    {"GemmaActivation", gemma3, {{"hidden_activation", "gelu"}}, "hidden_activation: \"gelu\" cannot be imported"},
    {"Bidirectional", gemma3, {{"use_bidirectional_attention", true}}, "use_bidirectional_attention: true cannot"},
    {"Gemma3SoftCap", gemma3, {{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping: 50.0 cannot be imported"},
    {"Qwen35WithoutGate", qwen3_5, {{"attn_output_gate", false}}, "attn_output_gate: false cannot be imported"},
    {"OddRotation", qwen3_5, {{"head_dim", 36}}, "partial_rotary_factor: 0.25: expected a factor that rotates an even"},
    {"NoRotation",
     qwen3_5,
     {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0}}}},
     "partial_rotary_factor: 0: expected a factor"},
    {"PartialYarn",
     qwen3_5,
     {{"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e7}, {"factor", 4.0}}}},
     "YaRN scales the rotated channels of queries and keys by 1.1386"},
    {"Mrope",
     qwen3_5,
     {{"rope_parameters", {{"rope_type", "mrope"}}}},
     "rope_parameters: {\"rope_type\":\"mrope\"} can"},
    {"NoAttention", qwen3_5, {{"full_attention_interval", 25}}, "at least one layer must be full_attention"},
    {"Windows",
     qwen3_5,
     {{"layer_types", json::array_t(24, "sliding_attention")}},
     "layer_types: [\"sliding_attention\""},
    {"Qwen35Moe", qwen3_5, {{"model_type", "qwen3_5_moe_text"}}, "model_type: \"qwen3_5_moe_text\" cannot be imported"},
    {"Qwen3Next", qwen3_5, {{"model_type", "qwen3_next"}}, "model_type: \"qwen3_next\" cannot be imported"},
    {"Qwen35Experts", qwen3_5, {{"num_experts", 64}}, "num_experts: 64 cannot be imported: mixtures of experts"},
    {"PositionsOfOlmoHybrid", olmo_hybrid, {{"rope_parameters", nullptr}}, "rope_parameters is missing. Versions of"},
    {"NoDeltaNets",
     olmo_hybrid,
     {{"layer_types", json::array_t(32, "full_attention")}},
     "at least one layer must be linear_attention"},
    {"NoHeads", llama, {{"num_attention_heads", 0}}, "num_attention_heads"},
    {"NoHeadsOfGpt2", gpt2, {{"n_head", 0}}, "n_head"},
    {"NoFamily", llama, {{"model_type", nullptr}}, "model_type is missing"},
    {"Architecture", llama, {{"architectures", {"LlamaForTokenClassification"}}}, "architectures: [\"LlamaForToken"},
    {"LongRope",
     llama,
     {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}}},
     "rope_scaling: {\"factor\":4.0,"},
    {"YarnWithoutAttention",
     llama,
     {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 0}}}},
     "rope_scaling: attention_factor: 0: expected a number above 0"},
    {"YarnBetweenChannels",
     llama,
     {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}}}},
     "rope_scaling: truncate: false"},
    {"RopeByLayer",
     llama,
     {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
     "rope_parameters: {\"full_attention\""},
    {"NoFactor", llama, {{"rope_scaling", {{"rope_type", "linear"}}}}, "rope_scaling: factor is missing"},
    {"RopeTypes",
     llama,
     {{"rope_scaling", {{"rope_type", "linear"}, {"type", "dynamic"}, {"factor", 2.0}}}},
     "rope_scaling: rope_type: \"linear\" cannot be imported: type is 'dynamic'. Remove the wrong one"},
    {"RopeThetas",
     llama,
     {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 10000.0}}}},
     "rope_scaling: rope_theta: 10000.0 cannot be imported: outside of rope_scaling it is 500000. Remove"},
    {"FactorWithoutType",
     llama,
     {{"rope_scaling", {{"factor", 8.0}}}},
     "rope_scaling: factor: 8.0 cannot be imported: there is no rope_type"},
    {"FactorBelowOne",
     llama,
     {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}}},
     "rope_scaling: factor: 0.5: expected a number of at least 1"},
    {"Llama3OfALongerContext",
     llama,
     {{"max_position_embeddings", 4096}},
     "rope_scaling: original_max_position_embeddings: 8192: expected at most max_position_embeddings, 4096"},
    {"YarnOfALongerContext",
     qwen3,
     {{"max_position_embeddings", 4096},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 8192}}}},
     "rope_scaling: original_max_position_embeddings: 8192: expected at most max_position_embeddings, 4096"},
    {"PartialRotary", llama, {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: 0.5 cannot be imported"},
    {"AttentionBias", llama, {{"attention_bias", true}}, "attention_bias: true cannot be imported"},
    {"MlpBias", llama, {{"mlp_bias", true}}, "mlp_bias: true cannot be imported"},
    {"Qwen3Bias", qwen3, {{"attention_bias", true}}, "attention_bias: true cannot be imported"},
    {"SoftCaps", llama, {{"final_logit_softcapping", 30.0}}, "final_logit_softcapping: 30.0 cannot be imported"},
    {"Quantized", llama, {{"quantization_config", {{"bits", 4}}}}, "quantization_config: {\"bits\":4} cannot"},
    {"OwnCode", llama, {{"auto_map", {{"AutoConfig", "x.Y"}}}}, "auto_map: "},
    {"Activation", llama, {{"hidden_act", "gelu"}}, "hidden_act: \"gelu\" cannot be imported"},
    {"Gpt2Activation", gpt2, {{"activation_function", "relu"}}, "activation_function: \"relu\" cannot be imported"},
    {"ScaledByLayer", gpt2, {{"scale_attn_by_inverse_layer_idx", true}}, "scale_attn_by_inverse_layer_idx: true"},
    {"LayerTypes",
     qwen3,
     {{"use_sliding_window", true}, {"sliding_window", 8}, {"layer_types", {"full_attention"}}},
     "layer_types: [\"full_attention\"]: expected a list of 28 strings"},
    {"Text", llama, {{"hidden_size", "2048"}}, "hidden_size: \"2048\": expected a whole number"},
    {"Fraction", llama, {{"hidden_size", 2048.5}}, "hidden_size: 2048.5: expected a whole number"},
    {"Negative", llama, {{"num_hidden_layers", -1}}, "num_hidden_layers: -1: expected a whole number up to 10000"},
    {"Missing", llama, {{"intermediate_size", nullptr}}, "intermediate_size is missing"}};

INSTANTIATE_TEST_SUITE_P(Keys, HfConfigRefuses, testing::ValuesIn(kRefusals),
                         [](const auto& test) { return test.param.name; });

TEST(HfConfig, RefusesInvalidJson) {
  EXPECT_TRUE(contains(error_of([] { parse_hf_config("{", "c"); }), "c cannot be read as JSON"));
  EXPECT_TRUE(contains(error_of([] { parse_hf_config("[]", "c"); }), "c: expected a JSON object"));
  EXPECT_TRUE(contains(error_of([] { parse_hf_config(std::string(40, '['), "c"); }), "levels deep"));
}

ModelConfig model_like(Family f) {
  ModelConfig m;
  m.vocab_size = 64;
  m.context = 32;
  m.layers = 2;
  m.width = 32;
  m.heads = 4;
  if (f != Family::gpt2) return m;
  m.norm = NormKind::layer;
  m.positions = Positions::learned;
  m.mlp = Mlp::gelu_tanh;
  m.biases = Biases::all;
  return m;
}

struct Unsaid {
  std::string name;
  Family base;
  std::function<void(ModelConfig&)> change;
  std::string message;
};
void PrintTo(const Unsaid& u, std::ostream* out) { *out << u.name; }

class HfExportRefuses : public testing::TestWithParam<Unsaid> {};

TEST_P(HfExportRefuses, TheKeyThatPreventsIt) {
  ModelConfig m = model_like(GetParam().base);
  EXPECT_EQ(family_of(m.resolved()), GetParam().base);
  GetParam().change(m);
  const std::string error = error_of([&] { family_of(m.resolved()); });
  EXPECT_TRUE(contains(error, "model." + GetParam().message)) << error;
}

LayerAttentionConfig window_in(const std::string& layers, std::int64_t window) {
  LayerAttentionConfig a{layers, {}};
  a.attention.kind = "window";
  a.attention.window = window;
  return a;
}

const Unsaid kUnsaid[] = {
    {"Relu2", Family::llama, [](ModelConfig& m) { m.mlp = Mlp::relu2; },
     "mlp: relu2 cannot be exported: LlamaForCausalLM"},
    {"Magneto", Family::llama, [](ModelConfig& m) { m.norm_place = NormPlace::sub; }, "norm_place: sub"},
    {"PostNorm", Family::gpt2, [](ModelConfig& m) { m.norm_place = NormPlace::post; }, "norm_place: post"},
    {"NoPositions", Family::llama, [](ModelConfig& m) { m.positions = Positions::none; }, "positions: none"},
    {"LayerNormAndRope", Family::llama, [](ModelConfig& m) { m.norm = NormKind::layer; }, "positions: rope"},
    {"Dilated", Family::llama, [](ModelConfig& m) { m.attention.kind = "dilated"; }, "attention: kind: dilated"},
    {"Sinks", Family::llama,
     [](ModelConfig& m) {
       m.attention = window_in("", 8).attention;
       m.attention.sinks = 2;
     },
     "attention: sinks: 2"},
    {"Pools", Family::llama,
     [](ModelConfig& m) {
       m.attention = window_in("", 8).attention;
       m.attention.pools = {4};
     },
     "attention: pools"},
    {"SomeWindows", Family::llama, [](ModelConfig& m) { m.attention_layers = {window_in("1", 8)}; },
     "attention_layers: windows in only some layers"},
    {"TwoWindows", Family::llama,
     [](ModelConfig& m) {
       m.attention_layers = {window_in("0", 8), window_in("1", 9)};
     },
     "attention_layers: windows of 8 and of 9"},
    {"QkNormAndBiases", Family::llama,
     [](ModelConfig& m) {
       m.qk_norm = true;
       m.biases = Biases::qkv;
     },
     "biases: qkv cannot be exported: Qwen3"},
    {"Gpt2Window", Family::gpt2, [](ModelConfig& m) { m.attention = window_in("", 8).attention; },
     "attention.kind: window"},
    {"Gpt2NoBiases", Family::gpt2, [](ModelConfig& m) { m.biases = Biases::none; },
     "biases: none cannot be exported: GPT2"},
    {"Gpt2Groups", Family::gpt2, [](ModelConfig& m) { m.kv_heads = 2; }, "kv_heads: 2"},
    {"Gpt2WideHeads", Family::gpt2, [](ModelConfig& m) { m.head_dim = 16; }, "head_dim: 16"}};

INSTANTIATE_TEST_SUITE_P(Keys, HfExportRefuses, testing::ValuesIn(kUnsaid),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace ring::test
