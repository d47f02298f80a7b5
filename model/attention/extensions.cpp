#include "model/attention/extensions.h"

namespace ring {

AttentionExtension pools_extension();  // pools/pools.cpp

std::vector<AttentionExtension>& attention_extensions() {
  static std::vector<AttentionExtension> extensions = {pools_extension()};
  return extensions;
}

void validate_extensions(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  for (const AttentionExtension& e : attention_extensions()) e.validate(c, errors);
}

Pattern with_extensions(Pattern p, const AttentionConfig& c) {
  for (const AttentionExtension& e : attention_extensions()) e.extend(c, p);
  return p;
}

std::string extensions_text(const AttentionConfig& c) {
  std::string text;
  for (const AttentionExtension& e : attention_extensions()) text += e.text(c);
  return text;
}

void add_ineffective_extensions(const AttentionConfig& c, const TrainingSizes& t, std::vector<std::string>& texts) {
  for (const AttentionExtension& e : attention_extensions())
    if (const std::string text = e.ineffective(c, t); !text.empty()) texts.push_back(text);
}

}  // namespace ring
