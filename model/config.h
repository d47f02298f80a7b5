#pragma once
// The decoder's shape. The family (GPT-2, Llama, Qwen, ...) is chosen by fields, not by classes.

#include <cstdint>
#include <string>
#include <vector>

#include "core/setting_problem.h"
#include "kernels/activation.h"
#include "model/attention/config.h"
#include "model/gated_delta_net_config.h"
#include "model/lora_config.h"

namespace ring {

class Fields;

enum class NormKind : std::uint8_t { layer, rms };
enum class NormPlace : std::uint8_t {
  pre,        // x + f(norm(x)), and a final norm (Xiong et al. 2020)
  post,       // norm(x + f(x)) (Vaswani et al. 2017)
  sub,        // `pre`, and a second norm before each output projection (MAGNETO: Wang et al. 2022, section 2.1)
  sandwich,   // x + norm(f(norm(x))), and a final norm (Ding et al. 2021; Gemma 2)
  reordered,  // x + norm(f(x)), and a final norm (OLMo 2: Walsh et al. 2024)
  reordered_attention,  // `reordered` in blocks with attention, `pre` in all others (Olmo Hybrid)
};
enum class Positions : std::uint8_t { learned, rope, none };
enum class Mlp : std::uint8_t { gelu, gelu_tanh, swiglu, geglu_tanh, relu2 };
inline bool is_gated(Mlp mlp) { return mlp == Mlp::swiglu || mlp == Mlp::geglu_tanh; }
enum class QkNormOver : std::uint8_t { head, projection };
enum class Biases : std::uint8_t { none, all, qkv };
enum class InitScheme : std::uint8_t {
  normal,        // every matrix normal(0, init_std)
  depth_scaled,  // normal; output projections / sqrt(2 layers) (GPT-2: Radford et al. 2019, section 2.3)
  magneto,       // Xavier normal; value, output and MLP matrices times sqrt(log(2 layers)) (Wang et al. 2022, table 2)
};
enum class RopeScaling : std::uint8_t {
  none,
  linear,  // positions divided by factor (Chen et al. 2023)
  llama3,  // low frequencies divided by factor, with a smooth transition to high ones (Llama 3.1)
  // Like llama3, with the transition by channels, and scores times attention_factor^2 (Peng et al. 2023, section 3).
  yarn,
  dynamic,  // theta grows with the length of each sequence beyond original_context (Peng et al. 2023, section 3.3)
};

struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_context = 8192;
  double beta_fast = 32, beta_slow = 1, attention_factor = 0;  // yarn; attention_factor 0 uses the paper's value
  double partial_rotary_factor = 1;                            // share of a head's channels that is rotated
  bool operator==(const RopeConfig&) const = default;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

struct LayerRopeConfig {
  std::string layers;
  RopeConfig rope;
  void fields(Fields&);
};

struct ModelConfig {
  std::int64_t vocab_size = 0;  // 0 uses the corpus's vocabulary size
  std::int64_t context = 256;
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;   // 0 means heads
  std::int64_t head_dim = 0;   // 0 means width / heads
  std::int64_t mlp_width = 0;  // 0 means 4 width; if gated, 8/3 width rounded up to 32
  NormKind norm = NormKind::rms;
  NormPlace norm_place = NormPlace::pre;
  double norm_eps = 1e-5;
  bool norm_zero_centered = false;
  Positions positions = Positions::rope;
  RopeConfig rope;
  std::vector<LayerRopeConfig> rope_layers;  // if several entries name a layer, the last one applies
  AttentionConfig attention;
  std::vector<LayerAttentionConfig> attention_layers;  // later entries override earlier ones
  std::vector<Mixer> mixers;  // mixer of each layer; the list repeats; empty means attention in all layers
  GatedDeltaNetConfig gated_delta_net;
  Mlp mlp = Mlp::swiglu;
  Biases biases = Biases::none;
  bool qk_norm = false;
  QkNormOver qk_norm_over = QkNormOver::head;
  bool learned_sinks = false;
  bool attention_output_gate = false;
  double attention_scale = 0;                         // scores are multiplied by it; 0 means 1 / sqrt(head_dim)
  double attention_soft_cap = 0, logit_soft_cap = 0;  // x becomes cap * tanh(x / cap); 0 means no cap
  double embedding_scale = 1;                         // token embeddings are multiplied by it
  bool tied_embeddings = true;
  double dropout = 0, attention_dropout = 0;
  InitScheme init = InitScheme::depth_scaled;
  double init_std = 0.02;
  LoraConfig lora;
  std::string architecture = "decoder";  // one of architecture_names(); a setting only if there are several

  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;

  // Returns the config with every 0 replaced by the value that it stands for.
  ModelConfig resolved() const;
};

// Returns the rotary embedding of each layer, in layer order.
std::vector<const RopeConfig*> ropes_of(const ModelConfig&);
// Returns how many channels of a head are rotated: head_dim * partial_rotary_factor, rounded down to an even
// number.
std::int64_t rotary_channels(const RopeConfig&, std::int64_t head_dim);

Mixer mixer_of(const ModelConfig&, std::int64_t layer);
// Returns where the block of a layer has its norms; never reordered_attention.
NormPlace norm_place_of(const ModelConfig&, std::int64_t layer);
// Returns the indices of the layers with attention, ascending.
std::vector<std::int64_t> attention_layers_of(const ModelConfig&);
// Returns the names of the linear layers of the blocks, as in model.lora.targets.
std::vector<std::string> linear_names(const ModelConfig&);
// Returns true if any layer is a gated delta net.
bool has_gated_delta_net(const ModelConfig&);

// Returns the degrees of tensor parallelism that the model can be sharded by, ascending from 1.
std::vector<std::int64_t> possible_slices(const ModelConfig& resolved);

}  // namespace ring
