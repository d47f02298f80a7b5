#pragma once
// Settings of gated delta net layers, and the mixers of a model's layers.

#include <cstdint>
#include <string>
#include <vector>

#include "model/attention/config.h"

namespace ring {

class Fields;

enum class Mixer : std::uint8_t { attention, gated_delta_net };

struct GatedDeltaNetConfig {
  std::int64_t key_heads = 0;    // 0 means model.heads
  std::int64_t value_heads = 0;  // 0 means key_heads
  std::int64_t key_width = 0;    // channels per head; 0 means model.head_dim
  std::int64_t value_width = 0;  // channels per head; 0 means key_width
  std::int64_t conv_kernel = 4;
  bool negative_eigenvalues = false;
  double norm_eps = 0;  // 0 means model.norm_eps
  bool operator==(const GatedDeltaNetConfig&) const = default;
  void fields(Fields&);

  std::int64_t keys() const { return key_heads * key_width; }        // channels of all keys
  std::int64_t values() const { return value_heads * value_width; }  // channels of all values
};

// Returns the section with each 0 replaced by the value that it stands for. heads, head_dim: those of attention.
GatedDeltaNetConfig resolved_for(GatedDeltaNetConfig, std::int64_t heads, std::int64_t head_dim);

// Settings that must be compatible with model.mixers. attention_layers: the layers with attention, ascending.
struct MixerSettings {
  const GatedDeltaNetConfig& resolved;
  const AttentionConfig& attention;
  const std::vector<LayerAttentionConfig>& sections;
  std::int64_t layers;
  const std::vector<std::int64_t>& attention_layers;
};
// Adds a problem for each setting that does not fit layers with gated delta nets. Settings are named without `model.`.
void validate_mixers(const MixerSettings&, std::vector<SettingProblem>& errors);
// Adds a problem if `list`, which is the value of the setting named `key`, contains a layer without attention.
void check_attention_layers(const std::string& key, const std::string& list, std::int64_t layers,
                            const std::vector<std::int64_t>& attention_layers, std::vector<SettingProblem>& errors);
// Adds a problem if the section `gated_delta_net` is set. Call it if no layer is a gated delta net.
void validate_unused(const GatedDeltaNetConfig&, std::vector<SettingProblem>& errors);

}  // namespace ring
