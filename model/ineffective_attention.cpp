#include "model/ineffective_attention.h"

#include "core/check.h"
#include "model/attention/kinds.h"

namespace ring {
namespace {

void add_ineffective(const std::string& key, const AttentionConfig& c, const TrainingSizes& sizes,
                     std::vector<std::string>& all) {
  std::vector<std::string> texts;
  if (const auto& ineffective = attention_kind(c.kind).ineffective) ineffective(c, sizes, texts);
  for (const std::string& text : texts) all.push_back(str(key, ".", text));
}

}  // namespace

bool may_be_ineffective(const ModelConfig& model) { return !ineffective_attention(model, 1, 0).empty(); }

std::vector<std::string> ineffective_attention(const ModelConfig& model, std::int64_t longest, std::int64_t steps) {
  const TrainingSizes sizes{model.kv_heads, longest, steps};
  std::vector<std::string> all;
  add_ineffective("model.attention", model.attention, sizes, all);
  for (std::size_t i = 0; i < model.attention_layers.size(); ++i)
    add_ineffective(str("model.attention_layers[", i, "].attention"), model.attention_layers[i].attention, sizes, all);
  return all;
}

}  // namespace ring
