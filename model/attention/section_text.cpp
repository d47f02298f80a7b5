#include "model/attention/section_text.h"

#include "core/fields.h"
#include "model/attention/kinds.h"

namespace ring {
namespace {

bool every_key(const std::string&) { return true; }

// Returns ", key: value" for each setting of c that differs from its default. If some(key) is true, also returns the
// setting if it differs from `over`.
template <class C, class Keys>
std::string given_text(const C& c, const C& over, const Keys& some) {
  const auto values = global_values(c), olds = global_values(over), plain = global_values(C());
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& [key, value] = values[i];
    if (value != plain[i].second || (olds[i].second != value && some(key))) text += str(", ", key, ": ", value);
  }
  return text;
}

std::string rule_yaml(const BlockRuleConfig& r) {
  const std::string pattern = global_values(r).front().second;
  BlockRuleConfig others = r;
  others.pattern = BlockRuleConfig().pattern;
  // global_values() leaves out the file path, which may differ between ranks.
  const std::string file = r.file.empty() ? "" : ", file: " + config::to_text(r.file);
  return str("{pattern: ", pattern, given_text(others, BlockRuleConfig(), every_key), file, "}");
}

std::string rules_text(const AttentionConfig& c) {
  std::string rules;
  for (const BlockRuleConfig& r : c.rules) rules += str(rules.empty() ? "" : ", ", rule_yaml(r));
  return str("rules: [", rules, "]");
}

}  // namespace

std::string section_text(const AttentionConfig& c, const AttentionConfig& over) {
  const auto without_rules = [](AttentionConfig section) {
    section.kind = AttentionConfig().kind;
    section.rules.clear();
    return section;
  };
  const auto reads = [&](const std::string& key) { return attention_kind(c.kind).reads_setting(key); };
  const std::string given = given_text(without_rules(c), without_rules(over), reads);
  return str("{kind: ", c.kind, given, c.rules.empty() ? "" : ", " + rules_text(c), "}");
}

std::string block_text(const AttentionConfig& c) { return str("{block: ", block_size_of(c), ", ", rules_text(c), "}"); }

}  // namespace ring
