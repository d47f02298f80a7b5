#include "model/attention/variant_settings.h"

namespace ring {

VariantSettings pools_settings();  // pools/settings.cpp

std::vector<VariantSettings>& variant_settings() {
  static std::vector<VariantSettings> all = {pools_settings()};
  return all;
}

void validate_variants(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  for (const VariantSettings& e : variant_settings()) e.validate(c, errors);
}

Pattern with_variants(Pattern p, const AttentionConfig& c) {
  for (const VariantSettings& e : variant_settings()) e.extend(c, p);
  return p;
}

std::string variants_text(const AttentionConfig& c) {
  std::string text;
  for (const VariantSettings& e : variant_settings()) text += e.text(c);
  return text;
}

void add_ineffective_variants(const AttentionConfig& c, const TrainingSizes& t, std::vector<std::string>& texts) {
  for (const VariantSettings& e : variant_settings())
    if (const std::string text = e.ineffective(c, t); !text.empty()) texts.push_back(text);
}

}  // namespace ring
