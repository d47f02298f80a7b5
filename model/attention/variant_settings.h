#pragma once
// Settings of variants of attention (model/attention_variant.h) that several kinds read, such as those of pools. A kind
// lists them among its own and calls the functions below. To add some, add a file in the variant's folder, such as
// pools/settings.cpp, and two lines in variant_settings.cpp.

#include <functional>
#include <string>
#include <vector>

#include "model/attention/kinds.h"
#include "model/attention/trained_part.h"

namespace ring {

// All functions must be set.
struct VariantSettings {
  // Appends problems with the variant's settings, like a section's validate().
  std::function<void(const AttentionConfig&, std::vector<SettingProblem>& errors)> validate;
  std::function<void(const AttentionConfig&, Pattern&)> extend;
  std::function<std::string(const AttentionConfig&)> text;  // returns a text to append: ", pools of 16, 64" or ""
  // Returns why the settings have no effect, beginning with the key; "" if they have.
  std::function<std::string(const AttentionConfig&, const TrainingSizes&)> ineffective;
  std::vector<TrainedPart> trained_parts;
};

std::vector<VariantSettings>& variant_settings();

// Call the functions above for all variants.
void validate_variants(const AttentionConfig&, std::vector<SettingProblem>& errors);
Pattern with_variants(Pattern, const AttentionConfig&);
std::string variants_text(const AttentionConfig&);
void add_ineffective_variants(const AttentionConfig&, const TrainingSizes&, std::vector<std::string>& texts);

}  // namespace ring
