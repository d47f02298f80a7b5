// Block-sparse attention: each rule has a pattern, which decides the blocks that its heads keep
// (model/attention/block_patterns.h).
#include <algorithm>
#include <map>

#include "core/check.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/joined.h"
#include "core/setting_problem.h"
#include "model/attention/block_patterns.h"
#include "model/attention/kinds.h"
#include "model/attention/variant_settings.h"

namespace ring {
namespace {

std::size_t rule_index(const AttentionConfig& c, std::int64_t kv_head) {
  return static_cast<std::size_t>(c.heads.empty() ? 0 : c.heads[static_cast<std::size_t>(kv_head) % c.heads.size()]);
}

bool some_head_follows(const AttentionConfig& c, const BlockPatternKind& pattern) {
  if (c.kind != "block_sparse" || c.rules.empty()) return false;
  for (std::int64_t h = 0; h < std::max<std::int64_t>(1, std::ssize(c.heads)); ++h)
    if (rule_of_head(c, h).pattern == pattern.name) return true;
  return false;
}

}  // namespace

std::int64_t block_size_of(const AttentionConfig& c) {
  constexpr std::int64_t usual = 128;
  return c.block ? c.block : usual;
}

const BlockRuleConfig& rule_of_head(const AttentionConfig& c, std::int64_t kv_head) {
  return c.rules[rule_index(c, kv_head)];
}

bool learns_blocks(const BlockRuleConfig& r) { return block_pattern_of(r).chooser == BlockChooser::indexer; }

bool learns_blocks(const AttentionConfig& c) {
  return std::ranges::any_of(block_patterns(), [&](const BlockPatternKind& p) {
    return p.chooser == BlockChooser::indexer && some_head_follows(c, p);
  });
}

namespace {

// Checks that the layer selects by one kind of score, and that settings of a pattern belong to a rule of the section.
void validate_choosers(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  std::vector<std::string> selecting;
  for (const BlockPatternKind& p : block_patterns())
    if (selects_in_forward(p) && some_head_follows(c, p)) selecting.push_back("pattern: " + p.name);
  if (selecting.size() > 1)
    errors.push_back(str("rules: ", joined(selecting, " and "),
                         " cannot be combined in one layer. Put one of them into different layers "
                         "(model.attention_layers)"));
  for (const auto& [key, value] : given_settings(c))
    for (const BlockPatternKind& p : block_patterns())
      if (std::ranges::count(p.section_settings, key, [](const auto& s) { return s.first; }) &&
          !some_head_follows(c, p))
        errors.push_back(foreign_setting_problem(
            "rules", key,
            foreign_setting(key, value, "rules with pattern: " + p.name, "a section without such a rule")));
}

void validate_block_sparse(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  if (c.block != 0 && c.block != 64 && c.block != 128)
    errors.push_back(str("block: expected 64 or 128 tokens, got ", c.block));
  if (c.rules.empty())
    errors.push_back(
        "rules: kind: block_sparse needs at least one rule, such as rules: [{pattern: local_global, local: 4}]");
  for (std::int64_t rule : c.heads)
    if (rule >= static_cast<std::int64_t>(c.rules.size()))
      errors.push_back(str("heads: rule ", rule, " does not exist: there ", c.rules.size() == 1 ? "is " : "are ",
                           counted(std::ssize(c.rules), "rule"), ", counted from 0"));
  if (c.layers_per_selection > 1 && std::ranges::none_of(c.rules, selects_in_forward, block_pattern_of))
    errors.push_back(str("layers_per_selection: ", c.layers_per_selection,
                         " layers would share a selection, but no rule selects blocks. Add pattern: content, or leave "
                         "layers_per_selection out"));
  for (const BlockPatternKind& p : block_patterns())
    if (p.validate_section && std::ranges::count(c.rules, p.name, &BlockRuleConfig::pattern))
      p.validate_section(c, errors);
  validate_variants(c, errors);
  if (errors.empty()) validate_choosers(c, errors);
}

Pattern block_sparse_pattern(const AttentionConfig& c, const ModelSizes& model) {
  RulesOfHeads all;
  for (const BlockRuleConfig& r : c.rules) {
    const BlockPatternKind& p = block_pattern_of(r);
    all.rules.push_back(p.rule ? p.rule(r) : BlockRule());
  }
  std::map<std::size_t, HeadsOfRule> heads_of;
  for (std::int32_t head = 0; head < model.kv_heads; ++head) {
    const std::size_t rule = rule_index(c, head);
    all.of_head.push_back(narrow<std::int32_t>(rule));
    heads_of.try_emplace(rule, HeadsOfRule{{}, block_size_of(c), model.context}).first->second.heads.push_back(head);
  }
  for (const auto& [rule, heads] : heads_of)
    if (const auto& draw = block_pattern_of(c.rules[rule]).draw) try {
        draw(c.rules[rule], heads, all);
      } catch (const Error& e) {
        fail("rules[", rule, "].", e.what());
      }
  Pattern p;
  p.blocks = std::make_shared<const BlockPattern>(narrow<std::int32_t>(block_size_of(c)), std::move(all.rules),
                                                  std::move(all.of_head), std::move(all.bits));
  return with_variants(p, c);
}

std::string block_sparse_text(const AttentionConfig& c, std::optional<std::int64_t> kv_head) {
  const auto rule_text = [](const BlockRuleConfig& r) { return block_pattern_of(r).text(r); };
  const std::string start =
      str("block_sparse, blocks of ", block_size_of(c),
          c.layers_per_selection > 1 ? str(", selected once in ", c.layers_per_selection, " layers") : "");
  if (kv_head) return str(start, ": ", rule_text(rule_of_head(c, *kv_head)), variants_text(c));
  std::string text = start;
  for (std::size_t i = 0; i < c.rules.size(); ++i)
    text += str(c.rules.size() > 1 ? str("; rule ", i, ": ") : ": ", rule_text(c.rules[i]));
  if (!c.heads.empty()) text += "; rules of heads " + list_text(c.heads);
  return text + variants_text(c);
}

// Reports entries of `heads` after the last KV head. (The list repeats, so a shorter one is fine.)
std::string idle_heads(const AttentionConfig& c, std::int64_t kv_heads) {
  const auto given = std::ssize(c.heads);
  if (given <= kv_heads) return "";
  return str("heads: a list of ", given, ", but the model has ", counted(kv_heads, "KV head"),
             " (model.kv_heads). Entries after the first ", kv_heads, " have no effect. Shorten the list");
}

// Reports a rule that keeps all blocks of the longest sequence, so that there is nothing to choose.
std::string idle_choice(const AttentionConfig& c, std::size_t i, const TrainingSizes& t) {
  const BlockRuleConfig& r = c.rules[i];
  const BlockPatternKind& p = block_pattern_of(r);
  if (const std::string text = p.idle_choice ? p.idle_choice(c, i, t) : ""; !text.empty()) return text;
  if (!chooses_blocks(r) || min_keep(r) < num_blocks(c, t.longest)) return "";
  return str("rules[", i, "].keep: ", min_keep(r), ", but ", longest_text(c, t.longest), ". All of them are kept, as ",
             "in dense attention, and selecting them only costs time. Lower keep, or train longer sequences");
}

std::string idle_wait(const AttentionConfig& c, std::size_t i, const TrainingSizes& t) {
  const BlockPatternKind& p = block_pattern_of(c.rules[i]);
  return p.idle_wait ? p.idle_wait(c, i, t) : "";
}

void add_ineffective_blocks(const AttentionConfig& c, const TrainingSizes& t, std::vector<std::string>& texts) {
  if (const std::string text = idle_heads(c, t.kv_heads); !text.empty()) texts.push_back(text);
  add_ineffective_variants(c, t, texts);
  for (const auto& idle : {idle_choice, idle_wait}) {
    std::string text;
    for (std::size_t i = 0; i < c.rules.size() && text.empty(); ++i) text = idle(c, i, t);
    if (!text.empty()) texts.push_back(text);
  }
}

}  // namespace

AttentionKind block_sparse_attention() {
  AttentionKind kind = {
      .name = "block_sparse",
      .keys = "blocks",
      .settings = {{"block", "tokens of a block, 64 or 128; 0 = 128"},
                   {"rules", "block patterns that heads choose from"},
                   {"heads", "rule of each KV head, counted from 0; a shorter list is repeated; [] = all 0"},
                   {"layers_per_selection",
                    "consecutive layers that share the first one's selection; 1 = each layer selects"},
                   {"pools", "same"},
                   {"pooling", "same"},
                   {"pool_gates", "same"}},
      .validate = validate_block_sparse,
      .pattern = block_sparse_pattern,
      .text = block_sparse_text,
      .ineffective = add_ineffective_blocks};
  for (const BlockPatternKind& p : block_patterns())
    kind.settings.insert(kind.settings.end(), p.section_settings.begin(), p.section_settings.end());
  return kind;
}

}  // namespace ring
