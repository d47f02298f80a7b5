#include "interchange/gguf/model.h"

#include <algorithm>

#include "core/check.h"
#include "model/rope.h"

namespace ring {
namespace {

constexpr const char* kOtherFormat = "Export it with --format hf instead";

[[noreturn]] void refuse(const std::string& setting, const std::string& architecture, const std::string& has) {
  fail(setting, " cannot be exported as GGUF: llama.cpp's '", architecture, "' supports only ", has, ". ",
       kOtherFormat);
}

std::string name_of(Family family) {
  switch (family) {
    case Family::llama: return "llama";
    case Family::mistral: return "llama";  // only for messages: check_expressible() refuses its windows
    case Family::qwen2: return "qwen2";
    case Family::qwen3: return "qwen3";
    case Family::gpt2: return "gpt2";
    case Family::olmo2:
    case Family::olmo3: return "olmo2";
    case Family::gemma2: return "gemma2";
    case Family::gemma3: return "gemma3";
    case Family::qwen3_5:
    case Family::olmo_hybrid: break;
  }
  fail(architecture(family), " cannot be exported as GGUF yet. ", kOtherFormat);
}

// Returns n if llama.cpp gives every n-th layer of the family dense attention and the others windows; 0 if it has no
// windows for the family.
std::int64_t window_period(const std::string& architecture) {
  if (architecture == "gemma2") return 2;
  if (architecture == "olmo2") return 4;
  return architecture == "gemma3" ? 6 : 0;
}

void check_windows(const std::string& architecture, const ModelConfig& c) {
  const std::vector<std::int64_t> windows = attention_windows(c);
  const std::int64_t period = window_period(architecture), one = std::ranges::max(windows);
  if (one > 0 && period == 0)
    refuse(str("attention kind window of ", one, " tokens"), architecture, "dense attention in all layers");
  if (period == 0 || (one == 0 && architecture == "olmo2")) return;
  const std::string has = str("windows in all layers but every ", period, "th",
                              architecture == "olmo2" ? ", or dense attention in all layers" : "");
  for (std::int64_t i = 0; i < c.layers; ++i)
    if ((windows[static_cast<std::size_t>(i)] > 0) != (i % period < period - 1))
      refuse(str("attention of layer ", i), architecture, has);
}

// Checks the scale of the attention scores and the soft caps. llama.cpp derives the scale from the number of layers,
// because the largest published models have a different one.
void check_gemma_constants(const std::string& architecture, const ModelConfig& c) {
  const bool largest = c.layers == (architecture == "gemma2" ? 46 : 62);
  const std::int64_t root = largest ? c.width / c.heads : c.head_dim;
  if (query_pre_attn_scalar(c) != root)
    refuse(str("model.attention_scale: ", c.attention_scale), architecture,
           str("1 / sqrt(", root, ") with ", c.layers, " layers"));
  const bool caps = architecture == "gemma2";
  for (const auto& [key, cap] :
       {std::pair{"attention_soft_cap", c.attention_soft_cap}, {"logit_soft_cap", c.logit_soft_cap}})
    if ((cap > 0) != caps) refuse(str("model.", key, ": ", cap), architecture, caps ? "caps above 0" : "0");
}

void check_rope_keys(const std::string& architecture, const ModelConfig& c) {
  const auto& [dense, windows] = published_ropes(c);
  if (architecture != "llama" && dense.scaling == RopeScaling::llama3)
    refuse("model.rope.scaling: llama3", architecture, "none and linear");
  if (dense.scaling == RopeScaling::dynamic)
    refuse("model.rope.scaling: dynamic", architecture, "frequencies that are the same for all lengths");
  if (dense.scaling == RopeScaling::yarn)
    fail("model.rope.scaling: yarn cannot be exported as GGUF yet. ", kOtherFormat,
         ", which llama.cpp's converter reads");
  if ((architecture != "olmo2" && architecture != "gemma3") || std::ranges::max(attention_windows(c)) == 0) return;
  const double theta = architecture == "gemma3" ? 1e4 : dense.theta;
  if (windows.scaling != RopeScaling::none || windows.theta != theta)
    refuse(str("the rotary embedding of layers with windows (theta ", windows.theta, ")"), architecture,
           str("theta ", theta, " without scaling there"));
}

void check_expressible(const std::string& architecture, const ModelConfig& c) {
  check_windows(architecture, c);
  if (architecture == "gpt2" && c.mlp == Mlp::gelu) refuse("model.mlp: gelu", architecture, "gelu_tanh");
  if (architecture == "gemma2" && !c.tied_embeddings) refuse("model.tied_embeddings: false", architecture, "true");
  if (architecture == "olmo2" && c.tied_embeddings) refuse("model.tied_embeddings: true", architecture, "false");
  if (architecture.starts_with("gemma")) check_gemma_constants(architecture, c);
  check_rope_keys(architecture, c);
  if ((architecture == "qwen2" || architecture == "olmo2") && c.head_dim * c.heads != c.width)
    refuse(str("model.head_dim: ", c.head_dim), architecture, str("width / heads, here ", c.width / c.heads));
}

const Naming& naming_of(const std::string& architecture) {
  static const Naming separate = {{{"embedding.tokens", "token_embd"},
                                   {"embedding.positions", "position_embd"},
                                   {"attention_norm", "attn_norm"},
                                   {"attention.wq", "attn_q"},
                                   {"attention.wk", "attn_k"},
                                   {"attention.wv", "attn_v"},
                                   {"attention.q_norm", "attn_q_norm"},
                                   {"attention.k_norm", "attn_k_norm"},
                                   {"attention.wo", "attn_output"},
                                   {"attention_out_norm", "post_attention_norm"},
                                   {"mlp_norm", "ffn_norm"},
                                   {"mlp_out_norm", "post_ffw_norm"},
                                   {"mlp.gate", "ffn_gate"},
                                   {"mlp.up", "ffn_up"},
                                   {"mlp.down", "ffn_down"},
                                   {"final_norm", "output_norm"},
                                   {"head", "output"}},
                                  "blk."};
  static const Naming fused_qkv = [] {
    Naming n = separate;
    for (const char* ours : {"attention.wq", "attention.wk", "attention.wv"}) n.modules[ours] = "attn_qkv";
    return n;
  }();
  return architecture == "gpt2" ? fused_qkv : separate;
}

GgufType type_of(const PublishedTensor& t, GgufType wanted) {
  const std::vector<std::int64_t> shape = t.shape();
  if (shape.size() < 2 || t.name.starts_with("position_embd.")) return GgufType::f32;
  const bool whole_blocks = shape.back() % kQ8Block == 0;
  return wanted == GgufType::q8_0 && !whole_blocks ? GgufType::f16 : wanted;
}

std::int64_t heads_to_interleave(const std::string& ours, const ModelConfig& c) {
  if (ours.find(".attention.wq.") != std::string::npos) return c.heads;
  return ours.find(".attention.wk.") != std::string::npos ? c.kv_heads : 0;
}

// Returns the factors by which llama.cpp divides the rotary frequencies.
std::vector<float> frequency_divisors(const ModelConfig& c) {
  RopeConfig plain = c.rope;
  plain.scaling = RopeScaling::none;
  const std::vector<float> before = rope_frequencies(plain, c.head_dim), after = rope_frequencies(c.rope, c.head_dim);
  std::vector<float> divisors;
  for (std::size_t i = 0; i < before.size(); ++i) divisors.push_back(before[i] / after[i]);
  return divisors;
}

// Writes the rotary embedding of the dense layers only. llama.cpp has that of layers with windows built in, and
// check_rope_keys() refuses models whose embedding differs from it.
void add_rope(GgufKeys& keys, const std::string& architecture, const ModelConfig& c) {
  const RopeConfig rope = published_ropes(c).dense;
  keys.emplace_back(architecture + ".rope.dimension_count", static_cast<std::uint32_t>(c.head_dim));
  keys.emplace_back(architecture + ".rope.freq_base", static_cast<float>(rope.theta));
  if (rope.scaling != RopeScaling::linear) return;  // llama3 scaling is stored as a tensor
  keys.emplace_back(architecture + ".rope.scaling.type", std::string("linear"));
  keys.emplace_back(architecture + ".rope.scaling.factor", static_cast<float>(rope.factor));
}

}  // namespace

std::string gguf_architecture(const ModelConfig& c) {
  const std::string name = name_of(family_of(c));
  check_expressible(name, c);
  return name;
}

GgufKeys gguf_settings(const std::string& architecture, const ModelConfig& c) {
  GgufKeys keys;
  const auto add = [&](const char* key, std::int64_t value) {
    keys.emplace_back(architecture + "." + key, static_cast<std::uint32_t>(value));
  };
  add("vocab_size", c.vocab_size);
  add("context_length", c.context);
  add("embedding_length", c.width);
  add("block_count", c.layers);
  add("feed_forward_length", c.mlp_width);
  add("attention.head_count", c.heads);
  add("attention.head_count_kv", c.kv_heads);
  add("attention.key_length", c.head_dim);
  add("attention.value_length", c.head_dim);
  const char* epsilon = c.norm == NormKind::rms ? ".attention.layer_norm_rms_epsilon" : ".attention.layer_norm_epsilon";
  keys.emplace_back(architecture + epsilon, static_cast<float>(c.norm_eps));
  if (const std::int64_t window = std::ranges::max(attention_windows(c))) add("attention.sliding_window", window);
  if (c.attention_soft_cap > 0)
    keys.emplace_back(architecture + ".attn_logit_softcapping", static_cast<float>(c.attention_soft_cap));
  if (c.logit_soft_cap > 0)
    keys.emplace_back(architecture + ".final_logit_softcapping", static_cast<float>(c.logit_soft_cap));
  if (c.positions == Positions::rope) add_rope(keys, architecture, c);
  return keys;
}

std::vector<GgufWeight> gguf_weights(const std::string& architecture, const ModelConfig& c, GgufType type) {
  std::vector<GgufWeight> all;
  if (c.rope.scaling == RopeScaling::llama3 && architecture == "llama")
    all.push_back({.tensor = {"rope_freqs.weight", {c.head_dim / 2}, GgufType::f32},
                   .from = {},
                   .heads = 0,
                   .values = frequency_divisors(c)});
  for (const PublishedTensor& t : named_tensors(naming_of(architecture), c)) {
    const std::int64_t heads = architecture == "llama" ? heads_to_interleave(t.parts[0].name, c) : 0;
    const bool centred = c.norm_zero_centered && t.name.ends_with("norm.weight");
    all.push_back({.tensor = {t.name, t.shape(), type_of(t, type)},
                   .from = t,
                   .heads = heads,
                   .values = {},
                   .add = centred ? 1.0f : 0.0f});
  }
  return all;
}

std::vector<float> interleaved_heads(const std::vector<float>& values, std::int64_t heads, std::int64_t columns) {
  const auto width = static_cast<std::size_t>(columns),
             half = values.size() / width / static_cast<std::size_t>(heads) / 2;
  std::vector<float> to(values.size());
  for (std::size_t row = 0; row < values.size() / width; ++row) {
    const std::size_t head = row / (2 * half), channel = row % (2 * half);
    // Channel i moves to 2 i, channel i + D/2 to 2 i + 1.
    const std::size_t place = channel < half ? 2 * channel : 2 * (channel - half) + 1;
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * width), width,
                to.begin() + static_cast<std::ptrdiff_t>((head * 2 * half + place) * width));
  }
  return to;
}

}  // namespace ring
