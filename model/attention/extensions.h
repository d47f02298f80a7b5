#pragma once
// Extensions of attention, such as pools: settings that several kinds read, and that extend the pattern of any of them.
// A kind with extensions lists their settings and calls the functions below. To add an extension, add a file in a
// folder of its own, such as pools/pools.cpp, and two lines in extensions.cpp.

#include <functional>
#include <string>
#include <vector>

#include "model/attention/kinds.h"
#include "model/attention/trained_part.h"

namespace ring {

struct AttentionExtension {
  // Adds the problems of the extension's settings, as a section's validate() does.
  std::function<void(const AttentionConfig&, std::vector<SettingProblem>& errors)> validate;
  std::function<void(const AttentionConfig&, Pattern&)> extend;
  std::function<std::string(const AttentionConfig&)> text;  // returns a text to append: ", pools of 16, 64" or ""
  // Returns why the settings have no effect, beginning with the key; "" if they have.
  std::function<std::string(const AttentionConfig&, const TrainingSizes&)> ineffective;
  std::vector<TrainedPart> trained_parts;
};

std::vector<AttentionExtension>& attention_extensions();

// Apply all extensions.
void validate_extensions(const AttentionConfig&, std::vector<SettingProblem>& errors);
Pattern with_extensions(Pattern, const AttentionConfig&);
std::string extensions_text(const AttentionConfig&);
void add_ineffective_extensions(const AttentionConfig&, const TrainingSizes&, std::vector<std::string>& texts);

}  // namespace ring
