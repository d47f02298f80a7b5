#include "model/gated_delta_net_config.h"

#include <algorithm>

#include "core/fields.h"
#include "model/layer_names.h"

namespace ring {

void GatedDeltaNetConfig::fields(Fields& f) {
  f("key_heads", key_heads, "heads of queries and keys; 0 = model.heads", in_range(0, 1 << 16));
  f("value_heads", value_heads, "heads of values, a multiple of key_heads; 0 = key_heads", in_range(0, 1 << 16));
  f("key_width", key_width, "channels of a head's queries and keys; 0 = model.head_dim", in_range(0, 1 << 16));
  f("value_width", value_width, "channels of a head's values; 0 = key_width", in_range(0, 1 << 16));
  f("conv_kernel", conv_kernel, "tokens that the convolution of queries, keys and values covers", in_range(2, 64));
  f("negative_eigenvalues", negative_eigenvalues,
    "beta is in [0, 2] instead of [0, 1]: a token can then flip the sign of what its key has stored");
  f("norm_eps", norm_eps, "epsilon of the output's norm; 0 = model.norm_eps; 1e-5 in Olmo Hybrid", in_range(0, 1));
}

namespace {

// Adds a problem if an attention section has settings that require attention in all layers.
void check_section(const std::string& key, const AttentionConfig& a, std::vector<SettingProblem>& errors) {
  if (a.layers_per_selection > 1)
    errors.push_back(str(key, ".layers_per_selection: ", a.layers_per_selection,
                         " shares selections between adjacent attention layers, but model.mixers puts gated delta nets "
                         "between them. Set it to 1"));
  const auto measured = [](const BlockRuleConfig& r) { return r.pattern == "importance"; };
  if (std::ranges::any_of(a.rules, measured))
    errors.push_back(str(key,
                         ".rules: pattern: importance does not support gated delta nets in other layers "
                         "(model.mixers). Use another pattern"));
}

}  // namespace

GatedDeltaNetConfig resolved_for(GatedDeltaNetConfig c, std::int64_t heads, std::int64_t head_dim) {
  if (!c.key_heads) c.key_heads = heads;
  if (!c.value_heads) c.value_heads = c.key_heads;
  if (!c.key_width) c.key_width = head_dim;
  if (!c.value_width) c.value_width = c.key_width;
  return c;
}

void check_attention_layers(const std::string& key, const std::string& list, std::int64_t layers,
                            const std::vector<std::int64_t>& attention_layers,
                            std::vector<SettingProblem>& errors) try {
  for (const std::int64_t layer : parse_layer_list(list, layers))
    if (!std::ranges::binary_search(attention_layers, layer))
      return errors.push_back(str(key, ": layer ", layer,
                                  " is a gated delta net (model.mixers) and has no attention. Name attention layers"));
} catch (const Error&) {  // the list cannot be parsed: ModelConfig::validate() reports that
}

void validate_unused(const GatedDeltaNetConfig& c, std::vector<SettingProblem>& errors) {
  if (c == GatedDeltaNetConfig{}) return;
  errors.push_back(
      unused_setting("gated_delta_net: has no effect, because no layer is a gated delta net. Set model.mixers, such as "
                     "[gated_delta_net, gated_delta_net, gated_delta_net, attention], or leave it out"));
}

void validate_mixers(const MixerSettings& s, std::vector<SettingProblem>& errors) {
  const GatedDeltaNetConfig& g = s.resolved;
  if (g.value_heads % g.key_heads)
    errors.push_back(str("gated_delta_net.value_heads: ", g.value_heads, " is not a multiple of key_heads = ",
                         g.key_heads, ". Use ", (g.value_heads / g.key_heads + 1) * g.key_heads));
  check_section("attention", s.attention, errors);
  for (std::size_t i = 0; i < s.sections.size(); ++i) {
    check_section(str("attention_layers[", i, "].attention"), s.sections[i].attention, errors);
    check_attention_layers(str("attention_layers[", i, "].layers"), s.sections[i].layers, s.layers, s.attention_layers,
                           errors);
  }
}

}  // namespace ring
