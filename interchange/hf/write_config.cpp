#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "interchange/hf/config.h"

namespace ring {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* torch_name(FloatType t) {
  switch (t) {
    case FloatType::f32: return "float32";
    case FloatType::f16: return "float16";
    case FloatType::bf16: return "bfloat16";
  }
  return "?";
}

// Returns the value of rope_scaling, or of rope_parameters without rope_theta.
OrderedJson rope_scaling(const RopeConfig& rope) {
  if (rope.scaling == RopeScaling::none) return {{"rope_type", "default"}};
  if (rope.scaling == RopeScaling::linear) return {{"rope_type", "linear"}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::dynamic) return {{"rope_type", "dynamic"}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::yarn) {
    OrderedJson yarn = {{"rope_type", "yarn"},
                        {"factor", rope.factor},
                        {"beta_fast", rope.beta_fast},
                        {"beta_slow", rope.beta_slow},
                        {"original_max_position_embeddings", rope.original_context}};
    // Omitted if it is not set: readers then use the factor of YaRN's paper.
    if (rope.attention_factor > 0) yarn["attention_factor"] = rope.attention_factor;
    return yarn;
  }
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_context}};
}

OrderedJson rope_parameters(const RopeConfig& rope) {
  OrderedJson parameters = rope_scaling(rope);
  parameters["rope_theta"] = rope.theta;
  return parameters;
}

// Writes the rotary embeddings of families in which layers with windows have one of their own, with the keys of
// transformers 5 and 4. In transformers 4, OLMo 3 has one rope_theta for all layers, and windows have no scaling.
void add_layer_ropes(OrderedJson& j, Family family, const PublishedRopes& ropes) {
  j["rope_theta"] = ropes.dense.theta;
  j["rope_scaling"] = ropes.dense.scaling == RopeScaling::none ? OrderedJson() : rope_scaling(ropes.dense);
  if (family == Family::gemma3) j["rope_local_base_freq"] = ropes.windows.theta;
  j["rope_parameters"] = {{"full_attention", rope_parameters(ropes.dense)},
                          {"sliding_attention", rope_parameters(ropes.windows)}};
}

// Writes the positions of families that only transformers 5 has.
void add_hybrid_rope(OrderedJson& j, Family family, const ModelConfig& c) {
  j["rope_parameters"] = rope_parameters(c.rope);
  if (family == Family::qwen3_5) j["rope_parameters"]["partial_rotary_factor"] = c.rope.partial_rotary_factor;
  if (c.positions == Positions::none) j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", nullptr}};
}

void add_rope(OrderedJson& j, const RopeConfig& rope) {
  // transformers 4 reads rope_theta and rope_scaling, transformers 5 reads rope_parameters.
  j["rope_theta"] = rope.theta;
  j["rope_scaling"] = rope.scaling == RopeScaling::none ? OrderedJson() : rope_scaling(rope);
  j["rope_parameters"] = rope_parameters(rope);
}

void add_layer_types(OrderedJson& j, Family family, const std::vector<std::int64_t>& windows) {
  const std::int64_t window_size = std::ranges::max(windows);  // all windows have one size (family_of() checks it)
  j["sliding_window"] = window_size > 0 ? OrderedJson(window_size) : OrderedJson();
  if (family == Family::qwen2 || family == Family::qwen3) {
    j["use_sliding_window"] = window_size > 0;
    // For readers that ignore layer_types: all layers from this index on have windows.
    j["max_window_layers"] = std::ranges::find_if(windows, [](std::int64_t w) { return w > 0; }) - windows.begin();
  }
  for (const std::int64_t window : windows)
    j["layer_types"].push_back(window > 0 ? "sliding_attention" : "full_attention");
}

void add_attention(OrderedJson& j, Family family, const ModelConfig& c) {
  const std::vector<std::int64_t> windows = attention_windows(c);
  if (family == Family::mistral) j["sliding_window"] = windows[0];
  if (has_layer_types(family)) add_layer_types(j, family, windows);
  if (family != Family::mistral && family != Family::qwen2) j["attention_bias"] = c.biases == Biases::all;
  if (family == Family::llama) j["mlp_bias"] = c.biases == Biases::all;
  j["attention_dropout"] = c.attention_dropout;
}

void add_delta_nets(OrderedJson& j, Family family, const ModelConfig& c) {
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    j["layer_types"].push_back(mixer_of(c, layer) == Mixer::attention ? "full_attention" : "linear_attention");
  const GatedDeltaNetConfig& g = c.gated_delta_net;
  if (!has_gated_delta_net(c)) return;
  j["linear_num_key_heads"] = g.key_heads;
  j["linear_num_value_heads"] = g.value_heads;
  j["linear_key_head_dim"] = g.key_width;
  j["linear_value_head_dim"] = g.value_width;
  j["linear_conv_kernel_dim"] = g.conv_kernel;
  if (family == Family::olmo_hybrid) j["linear_allow_neg_eigval"] = g.negative_eigenvalues;
}

void add_gemma(OrderedJson& j, const ModelConfig& c) {
  const auto cap = [](double value) { return value > 0 ? OrderedJson(value) : OrderedJson(); };
  j["hidden_activation"] = "gelu_pytorch_tanh";
  j["query_pre_attn_scalar"] = query_pre_attn_scalar(c);
  j["attn_logit_softcapping"] = cap(c.attention_soft_cap);
  j["final_logit_softcapping"] = cap(c.logit_soft_cap);
}

void add_llama(OrderedJson& j, Family family, const ModelConfig& c) {
  j["hidden_size"] = c.width;
  j["intermediate_size"] = c.mlp_width;
  j["num_hidden_layers"] = c.layers;
  j["num_attention_heads"] = c.heads;
  j["num_key_value_heads"] = c.kv_heads;
  if (family != Family::olmo_hybrid || c.head_dim * c.heads != c.width) j["head_dim"] = c.head_dim;
  if (is_gemma(family))
    add_gemma(j, c);
  else
    j["hidden_act"] = "silu";
  // Number of tokens above which transformers scales dynamic positions.
  j["max_position_embeddings"] = c.rope.scaling == RopeScaling::dynamic ? c.rope.original_context : c.context;
  j["rms_norm_eps"] = c.norm_eps;
  if (has_layer_ropes(family))
    add_layer_ropes(j, family, published_ropes(c));
  else if (is_hybrid(family))
    add_hybrid_rope(j, family, c);
  else
    add_rope(j, c.rope);
  add_attention(j, family, c);
  if (is_hybrid(family)) add_delta_nets(j, family, c);
}

void add_gpt2(OrderedJson& j, const ModelConfig& c) {
  j["n_positions"] = c.context;
  j["n_embd"] = c.width;
  j["n_layer"] = c.layers;
  j["n_head"] = c.heads;
  j["n_inner"] = c.mlp_width;
  j["activation_function"] = c.mlp == Mlp::gelu ? "gelu" : "gelu_new";
  j["layer_norm_epsilon"] = c.norm_eps;
  j["embd_pdrop"] = c.dropout;
  j["resid_pdrop"] = c.dropout;
  j["attn_pdrop"] = c.attention_dropout;
  j["scale_attn_weights"] = true;
  j["scale_attn_by_inverse_layer_idx"] = false;
}

// Returns the ids of the end tokens: a single number, a list without duplicates if there are several, or null.
OrderedJson end_ids(const TextEnds& ends) {
  std::vector<std::int32_t> all;
  if (ends.end) all.push_back(*ends.end);
  for (const std::int32_t id : ends.more_ends)
    if (std::ranges::find(all, id) == all.end()) all.push_back(id);
  if (all.size() > 1) return all;
  return all.empty() ? OrderedJson() : OrderedJson(all[0]);
}

// Writes the tokens that begin, end and pad a text. Begin and end are null if there are none: if the keys were missing,
// readers would use their own defaults. imported: the generation_config.json of imported weights, or an empty object.
void add_ends(OrderedJson& j, const TextEnds& ends, const OrderedJson& imported) {
  const OrderedJson bos = imported.value("bos_token_id", OrderedJson()),
                    pad = imported.value("pad_token_id", OrderedJson());
  j["bos_token_id"] = bos.is_null() && ends.begin ? OrderedJson(*ends.begin) : bos;
  j["eos_token_id"] = end_ids(ends);
  if (!pad.is_null()) j["pad_token_id"] = pad;
}

OrderedJson parse_imported(const std::string& imported) {
  return imported.empty() ? OrderedJson::object()
                          : parse_json<OrderedJson>(imported, {.duplicate_keys = DuplicateKeys::last_wins});
}

}  // namespace

std::string hf_config(Family family, const ModelConfig& c, FloatType type, const TextEnds& ends,
                      const std::string& imported) {
  OrderedJson j;
  j["architectures"] = {architecture(family)};
  j["model_type"] = model_type(family);
  j["vocab_size"] = c.vocab_size;
  if (family == Family::gpt2)
    add_gpt2(j, c);
  else
    add_llama(j, family, c);
  j["tie_word_embeddings"] = c.tied_embeddings;
  j["initializer_range"] = c.init_std;
  j["use_cache"] = true;
  add_ends(j, ends, parse_imported(imported));
  // The default of transformers is a token that small vocabularies do not have.
  if (family == Family::olmo_hybrid && !j.contains("pad_token_id")) j["pad_token_id"] = nullptr;
  // transformers 4 reads torch_dtype, transformers 5 reads dtype.
  j["torch_dtype"] = torch_name(type);
  j["dtype"] = torch_name(type);
  return j.dump(2) + "\n";
}

std::string hf_generation_config(const TextEnds& ends, const std::string& imported) {
  OrderedJson j = parse_imported(imported);
  if (imported.empty()) j["_from_model_config"] = true;
  add_ends(j, ends, OrderedJson(j));
  return j.dump(2) + "\n";
}

}  // namespace ring
