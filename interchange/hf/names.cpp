#include "interchange/hf/names.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/check.h"
#include "model/architectures.h"

namespace ring {
namespace {

const Naming& naming_like_llama() {
  static const Naming naming = {{{"embedding.tokens", "model.embed_tokens"},
                                 {"attention_norm", "input_layernorm"},
                                 {"attention.wq", "self_attn.q_proj"},
                                 {"attention.wk", "self_attn.k_proj"},
                                 {"attention.wv", "self_attn.v_proj"},
                                 {"attention.q_norm", "self_attn.q_norm"},
                                 {"attention.k_norm", "self_attn.k_norm"},
                                 {"attention.wo", "self_attn.o_proj"},
                                 {"mlp_norm", "post_attention_layernorm"},
                                 {"mlp.gate", "mlp.gate_proj"},
                                 {"mlp.up", "mlp.up_proj"},
                                 {"mlp.down", "mlp.down_proj"},
                                 {"final_norm", "model.norm"},
                                 {"head", "lm_head"}},
                                "model.layers."};
  return naming;
}

const Naming& naming_of_gpt2() {
  static const Naming naming = {{{"embedding.tokens", "transformer.wte"},
                                 {"embedding.positions", "transformer.wpe"},
                                 {"attention_norm", "ln_1"},
                                 {"attention.wq", "attn.c_attn"},
                                 {"attention.wk", "attn.c_attn"},
                                 {"attention.wv", "attn.c_attn"},
                                 {"attention.wo", "attn.c_proj"},
                                 {"mlp_norm", "ln_2"},
                                 {"mlp.up", "mlp.c_fc"},
                                 {"mlp.down", "mlp.c_proj"},
                                 {"final_norm", "transformer.ln_f"},
                                 {"head", "lm_head"}},
                                "transformer.h."};
  return naming;
}

// Returns the tensor names of families that also normalize the outputs of sublayers.
Naming naming_with_out_norms() {
  Naming naming = naming_like_llama();
  naming.modules["attention_out_norm"] = "post_attention_layernorm";
  naming.modules["mlp_norm"] = "pre_feedforward_layernorm";
  naming.modules["mlp_out_norm"] = "post_feedforward_layernorm";
  return naming;
}

// Returns the tensor names that Qwen3.5 and Olmo Hybrid have in common.
Naming naming_with_delta_nets() {
  Naming naming = naming_like_llama();
  naming.modules["gated_delta_net.log_decay"] = "linear_attn.A_log";
  naming.modules["gated_delta_net.dt_bias"] = "linear_attn.dt_bias";
  for (const char* conv : {"conv_q", "conv_k", "conv_v"})
    naming.modules[str("gated_delta_net.", conv)] = "linear_attn.conv1d.weight";
  return naming;
}

Naming naming_of_qwen3_5() {
  Naming naming = naming_with_delta_nets();
  naming.modules["attention.wg"] = "self_attn.q_proj";
  for (const auto& [ours, theirs] : {std::pair{"wq", "in_proj_qkv"},
                                     {"wk", "in_proj_qkv"},
                                     {"wv", "in_proj_qkv"},
                                     {"wa", "in_proj_a"},
                                     {"wb", "in_proj_b"},
                                     {"wz", "in_proj_z"},
                                     {"norm", "norm"},
                                     {"wo", "out_proj"}})
    naming.modules[str("gated_delta_net.", ours)] = str("linear_attn.", theirs);
  return naming;
}

Naming naming_of_olmo_hybrid() {
  Naming naming = naming_with_delta_nets();
  naming.modules["attention_out_norm"] = "post_attention_layernorm";
  naming.modules["mlp_out_norm"] = "post_feedforward_layernorm";
  for (const auto& [ours, theirs] : {std::pair{"wq", "q_proj"},
                                     {"wk", "k_proj"},
                                     {"wv", "v_proj"},
                                     {"wa", "a_proj"},
                                     {"wb", "b_proj"},
                                     {"wz", "g_proj"},
                                     {"norm", "o_norm"},
                                     {"wo", "o_proj"}})
    naming.modules[str("gated_delta_net.", ours)] = str("linear_attn.", theirs);
  return naming;
}

// Returns the names of the first published Olmo Hybrid models. Newer versions of transformers rename these tensors when
// they load them.
Naming first_naming_of_olmo_hybrid() {
  Naming naming = naming_of_olmo_hybrid();
  naming.modules["attention_norm"] = "attention_layer_norm";
  naming.modules["mlp_norm"] = "feedforward_layer_norm";
  for (const char* part : {"q", "k", "v"})
    naming.modules[str("gated_delta_net.conv_", part)] = str("linear_attn.", part, "_conv1d.weight");
  return naming;
}

const Naming& naming_of(Family family) {
  static const Naming out_norms = naming_with_out_norms(), qwen3_5 = naming_of_qwen3_5(),
                      olmo_hybrid = naming_of_olmo_hybrid();
  if (family == Family::gpt2) return naming_of_gpt2();
  if (family == Family::qwen3_5) return qwen3_5;
  if (family == Family::olmo_hybrid) return olmo_hybrid;
  return is_olmo(family) || is_gemma(family) ? out_norms : naming_like_llama();
}

constexpr std::string_view kBlocks = "blocks.";

bool in_block(const std::string& ours) { return ours.starts_with(kBlocks); }

std::string name_in(const Naming& naming, const std::string& ours) {
  std::string module = ours.substr(0, ours.rfind('.')), block;
  const std::string kind = ours.substr(ours.rfind('.'));
  if (in_block(ours)) {
    const std::size_t end = module.find('.', kBlocks.size());
    block = naming.blocks + module.substr(kBlocks.size(), end - kBlocks.size()) + ".";
    module = module.substr(end + 1);
  }
  if (const auto whole = naming.modules.find(module + kind); whole != naming.modules.end())
    return block + whole->second;
  const auto found = naming.modules.find(module);
  RING_CHECK(found != naming.modules.end(), naming.blocks, ": no name for ", ours);
  return block + found->second + kind;
}

// Returns true for weights of transformers' Conv1D, which only GPT-2 uses.
bool kept_transposed(Family family, const OurTensor& t) {
  return family == Family::gpt2 && in_block(t.name) && t.shape.size() == 2;
}

// Sets how the family stores the values of a tensor.
void set_layout(PublishedTensor& t, Family family, const ModelConfig& model) {
  const std::string& ours = t.parts[0].name;
  t.transposed = kept_transposed(family, t.parts[0]);
  if (family == Family::qwen3_5 && t.parts.size() == 2) t.interleaved_rows = model.head_dim;  // queries and their gates
  if (ours.substr(ours.rfind('.') + 1).starts_with("conv_")) t.taps = model.gated_delta_net.conv_kernel;
}

std::vector<PublishedTensor> tensors_in_layout(const Naming& naming, Family family, const ModelConfig& model) {
  std::vector<PublishedTensor> all = named_tensors(naming, model);
  for (PublishedTensor& t : all) set_layout(t, family, model);
  return all;
}

std::vector<OurTensor> our_tensors(ModelConfig model) {
  model.lora = {};
  const std::unique_ptr<Model> declared = make_model(model);
  std::vector<OurTensor> all;
  std::set<const Param*> seen;  // parameters found so far: a tied head is the embedding again
  for (const ModelPart& part : declared->parts())
    for (const Param* p : part.params)
      if (seen.insert(p).second)
        for (const LogicalParam& l : p->parts) all.push_back({l.name, l.whole});
  return all;
}

std::vector<float> transposed(const std::vector<float>& from, std::size_t rows, std::size_t columns) {
  std::vector<float> to(from.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  return to;
}

// Calls copy(offset of our values, offset of published ones, count) for each run of values that stay adjacent.
template <class Copy>
void for_interleaved(const PublishedTensor& t, const Copy& copy) {
  const std::size_t half = static_cast<std::size_t>(t.parts[0].shape.numel());
  const std::size_t rows = static_cast<std::size_t>(t.parts[0].shape[0]);
  const std::size_t run = static_cast<std::size_t>(t.interleaved_rows) * (half / rows);
  for (std::size_t at = 0; at < half; at += run)
    for (const std::size_t part : {0, 1}) copy(part * half + at, 2 * at + part * run, run);
}

}  // namespace

std::vector<std::int64_t> PublishedTensor::shape() const {
  if (taps > 0) return {numel() / taps, 1, taps};
  std::vector<std::int64_t> s(parts[0].shape.begin(), parts[0].shape.end());
  for (std::size_t i = 1; i < parts.size(); ++i) s[0] += parts[i].shape[0];
  if (transposed) std::swap(s[0], s[1]);
  return s;
}

std::int64_t PublishedTensor::numel() const {
  std::int64_t n = 0;
  for (const OurTensor& part : parts) n += part.shape.numel();
  return n;
}

std::vector<PublishedTensor> named_tensors(const Naming& naming, const ModelConfig& model) {
  std::vector<PublishedTensor> all;
  for (const OurTensor& t : our_tensors(model)) {
    const std::string name = name_in(naming, t.name);
    auto at = std::ranges::find(all.rbegin(), all.rend(), name, &PublishedTensor::name);
    if (at == all.rend()) {
      all.push_back({.name = name, .parts = {}});
      at = all.rbegin();
    }
    at->parts.push_back(t);
  }
  return all;
}

std::vector<PublishedTensor> published_tensors(Family family, const ModelConfig& model) {
  return tensors_in_layout(naming_of(family), family, model);
}

std::vector<PublishedTensor> exported_tensors(Family family, const ModelConfig& model) {
  static const Naming olmo_hybrid = first_naming_of_olmo_hybrid();
  return tensors_in_layout(family == Family::olmo_hybrid ? olmo_hybrid : naming_of(family), family, model);
}

std::vector<std::vector<std::string>> other_forms(Family family, const std::string& name) {
  const auto with = [&](std::string_view from, std::string_view to) -> std::string {
    const std::size_t at = name.find(from);
    return at == std::string::npos ? "" : std::string(name).replace(at, from.size(), to);
  };
  std::vector<std::vector<std::string>> forms;
  const auto add = [&](std::vector<std::string> form) {
    if (!form[0].empty()) forms.push_back(std::move(form));
  };
  if (family == Family::gpt2) add({with("transformer.", "")});                    // saved by GPT2Model
  if (family == Family::qwen3_5) add({with("model.", "model.language_model.")});  // the text model of a multimodal one
  if (family != Family::olmo_hybrid) return forms;
  add({with("input_layernorm", "attention_layer_norm")});
  add({with("post_attention_layernorm", "feedforward_layer_norm")});
  add({with("conv1d", "q_conv1d"), with("conv1d", "k_conv1d"), with("conv1d", "v_conv1d")});
  return forms;
}

std::vector<float> to_published_layout(const PublishedTensor& t, std::vector<float> all) {
  if (t.interleaved_rows > 0) {
    std::vector<float> to(all.size());
    for_interleaved(t, [&](std::size_t ours, std::size_t theirs, std::size_t count) {
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(ours), count,
                  to.begin() + static_cast<std::ptrdiff_t>(theirs));
    });
    return to;
  }
  if (!t.transposed) return all;
  const std::vector<std::int64_t> s = t.shape();
  return transposed(all, static_cast<std::size_t>(s[1]), static_cast<std::size_t>(s[0]));
}

std::vector<float> from_published_layout(const PublishedTensor& t, std::vector<float> values) {
  if (t.interleaved_rows > 0) {
    std::vector<float> to(values.size());
    for_interleaved(t, [&](std::size_t ours, std::size_t theirs, std::size_t count) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(theirs), count,
                  to.begin() + static_cast<std::ptrdiff_t>(ours));
    });
    return to;
  }
  if (!t.transposed) return values;
  const std::vector<std::int64_t> s = t.shape();
  return transposed(values, static_cast<std::size_t>(s[0]), static_cast<std::size_t>(s[1]));
}

}  // namespace ring
