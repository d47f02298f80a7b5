#include "interchange/hf/names.h"

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

const Naming& naming_of(Family family) {
  static const Naming out_norms = naming_with_out_norms();
  if (family == Family::gpt2) return naming_of_gpt2();
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
  const auto found = naming.modules.find(module);
  RING_CHECK(found != naming.modules.end(), naming.blocks, ": no name for ", ours);
  return block + found->second + kind;
}

// Returns true for weights of transformers' Conv1D, which only GPT-2 uses.
bool kept_transposed(Family family, const OurTensor& t) {
  return family == Family::gpt2 && in_block(t.name) && t.shape.size() == 2;
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

}  // namespace

std::vector<std::int64_t> PublishedTensor::shape() const {
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
    if (all.empty() || all.back().name != name) all.push_back({name, {}, false});
    all.back().parts.push_back(t);
  }
  return all;
}

std::vector<PublishedTensor> published_tensors(Family family, const ModelConfig& model) {
  std::vector<PublishedTensor> all = named_tensors(naming_of(family), model);
  for (PublishedTensor& t : all) t.transposed = kept_transposed(family, t.parts[0]);
  return all;
}

std::vector<float> to_published_layout(const PublishedTensor& t, std::vector<float> all) {
  if (!t.transposed) return all;
  const std::vector<std::int64_t> s = t.shape();
  return transposed(all, static_cast<std::size_t>(s[1]), static_cast<std::size_t>(s[0]));
}

std::vector<float> from_published_layout(const PublishedTensor& t, std::vector<float> values) {
  if (!t.transposed) return values;
  const std::vector<std::int64_t> s = t.shape();
  return transposed(values, static_cast<std::size_t>(s[0]), static_cast<std::size_t>(s[1]));
}

}  // namespace ring
