#pragma once
// Small models of every published family, and a run of one model to export and import.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/files.h"
#include "interchange/hf/export.h"
#include "interchange/hf/import.h"
#include "tests/checkpoint/fixture.h"
#include "tests/trainer/tiny.h"
#include "tests/trainer/written_run.h"

namespace ring::test {

struct Model {
  std::string name;
  Family family;
  std::function<void(ModelConfig&)> change;
};
inline void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

inline void make_gpt2(ModelConfig& m) {
  m.norm = NormKind::layer;
  m.positions = Positions::learned;
  m.mlp = Mlp::gelu_tanh;
  m.biases = Biases::all;
  m.kv_heads = m.heads;
  m.tied_embeddings = true;
}

inline void give_window(AttentionConfig& a) {
  a.kind = "window";
  a.window = 9;
}

inline void give_local_layer(ModelConfig& m) {
  m.attention_layers = {{"0", {}}};
  give_window(m.attention_layers[0].attention);
}

inline void make_olmo(ModelConfig& m) {
  m.norm_place = NormPlace::reordered;
  m.qk_norm = true;
  m.qk_norm_over = QkNormOver::projection;
}

inline void make_gemma(ModelConfig& m) {
  m.norm_place = NormPlace::sandwich;
  m.norm_zero_centered = true;
  m.mlp = Mlp::geglu_tanh;
  m.embedding_scale = std::sqrt(static_cast<double>(m.width));
  m.tied_embeddings = true;
  give_local_layer(m);
}

// The model has four layers, so that layers of each kind follow layers of the same and of the other kind.
inline void make_hybrid(ModelConfig& m) {
  m.layers = 4;
  m.mixers = {Mixer::gated_delta_net, Mixer::gated_delta_net, Mixer::attention};
  m.gated_delta_net = {.key_heads = 2, .value_heads = 4, .key_width = 16, .value_width = 24};
  m.qk_norm = true;
}

inline const Model kModels[] = {
    {"Llama", Family::llama, [](ModelConfig&) {}},
    {"Llama3", Family::llama, [](ModelConfig& m) { m.rope = {500, RopeScaling::llama3, 8, 1, 4, 16}; }},
    {"LlamaLinear", Family::llama,
     [](ModelConfig& m) {
       m.rope = {1e4, RopeScaling::linear, 2.5};
     }},
    {"LlamaYarn", Family::llama,
     [](ModelConfig& m) {
       m.rope = {.theta = 1e4, .scaling = RopeScaling::yarn, .factor = 4, .original_context = 16, .beta_fast = 8};
     }},
    {"Qwen3Yarn", Family::qwen3,
     [](ModelConfig& m) {
       m.qk_norm = true;
       m.rope = {.scaling = RopeScaling::yarn, .factor = 2.5, .original_context = 16, .attention_factor = 0.9};
     }},
    {"LlamaDynamic", Family::llama,
     [](ModelConfig& m) {
       m.rope = {.theta = 1e4, .scaling = RopeScaling::dynamic, .factor = 2, .original_context = m.context};
     }},
    {"LlamaBiases", Family::llama, [](ModelConfig& m) { m.biases = Biases::all; }},
    {"SmolLm", Family::llama,
     [](ModelConfig& m) {
       m.tied_embeddings = true;
       m.head_dim = 24;
     }},
    {"Mistral", Family::mistral, [](ModelConfig& m) { give_window(m.attention); }},
    {"Qwen2", Family::qwen2,
     [](ModelConfig& m) {
       m.biases = Biases::qkv;
       m.attention_layers = {{"1", {}}};
       give_window(m.attention_layers[0].attention);
     }},
    {"Qwen3", Family::qwen3,
     [](ModelConfig& m) {
       m.qk_norm = true;
       m.head_dim = 32;
     }},
    {"Olmo2", Family::olmo2, make_olmo},
    {"Olmo3", Family::olmo3,
     [](ModelConfig& m) {
       make_olmo(m);
       give_local_layer(m);
       m.rope = {.scaling = RopeScaling::yarn, .factor = 4, .original_context = 16};
       m.rope_layers = {{"0", {}}};
     }},
    {"Gemma2", Family::gemma2,
     [](ModelConfig& m) {
       make_gemma(m);
       m.attention_soft_cap = 50;
       m.logit_soft_cap = 30;
     }},
    {"Gemma3", Family::gemma3,
     [](ModelConfig& m) {
       make_gemma(m);
       m.qk_norm = true;
       m.attention_scale = 1 / std::sqrt(20.0);
       m.rope = {.theta = 1e6, .scaling = RopeScaling::linear};
       m.rope_layers = {{"0", {.theta = 1e4}}};
     }},
    {"Qwen35", Family::qwen3_5,
     [](ModelConfig& m) {
       make_hybrid(m);
       m.head_dim = 16;
       m.attention_output_gate = m.norm_zero_centered = true;
       m.norm_eps = 1e-6;
       m.rope = {.theta = 1e7,
                 .scaling = RopeScaling::yarn,
                 .factor = 4,
                 .original_context = 16,
                 .attention_factor = 1,
                 .partial_rotary_factor = 0.25};
     }},
    {"Qwen35Attention", Family::qwen3_5,
     [](ModelConfig& m) {
       m.qk_norm = m.attention_output_gate = m.norm_zero_centered = true;
       m.rope.partial_rotary_factor = 0.5;
     }},
    {"OlmoHybrid", Family::olmo_hybrid,
     [](ModelConfig& m) {
       make_hybrid(m);
       m.qk_norm_over = QkNormOver::projection;
       m.norm_place = NormPlace::reordered_attention;
       m.norm_eps = 1e-6;
       m.gated_delta_net.norm_eps = 1e-5;
       m.gated_delta_net.negative_eigenvalues = true;
     }},
    {"OlmoHybridWithoutPositions", Family::olmo_hybrid,
     [](ModelConfig& m) {
       make_hybrid(m);
       m.qk_norm_over = QkNormOver::projection;
       m.norm_place = NormPlace::reordered_attention;
       m.positions = Positions::none;
     }},
    {"Gpt2", Family::gpt2, make_gpt2},
    {"Gpt2Untied", Family::gpt2, [](ModelConfig& m) {
       make_gpt2(m);
       m.mlp = Mlp::gelu;
       m.tied_embeddings = false;
     }}};

inline const Model& model_named(const std::string& name) { return *std::ranges::find(kModels, name, &Model::name); }

inline Config config_with(const Model& model) {
  Config c = tiny_config();
  model.change(c.model);
  c.model = c.model.resolved();
  c.model.init = InitScheme::normal;
  c.data.path = "none";
  return c;
}

inline fs::path first_checkpoint(const fs::path& run) { return run / "checkpoints" / checkpoint_name(0); }

inline nlohmann::json json_in(const fs::path& file) { return nlohmann::json::parse(read_text(file)); }

class Hf : public testing::Test {
 protected:
  Hf() : config_(config_with(kModels[0])), original_(write_run(config_, path("run"))) {}
  fs::path path(const std::string& name) const {
    const fs::path p = folder_.path() / name;
    if (name == "run") fs::create_directories(p);
    return p;
  }
  std::string export_error(const ExportOptions& options = {}) const {
    return error_of([&] { export_to_hf(path("run").string(), path("out").string(), options); });
  }
  std::string import_error(const ImportOptions& options = {}) const {
    return error_of([&] { import_from_hf(path("out").string(), path("new").string(), options); });
  }
  // Returns the number of entries in the folder, whatever their names.
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }

  TempFolder folder_;
  Config config_;
  fs::path original_;
};

}  // namespace ring::test
