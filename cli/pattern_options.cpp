#include "cli/pattern_options.h"

#include <CLI/CLI.hpp>

#include "cli/number_option.h"
#include "core/check.h"
#include "model/attention/kinds.h"

namespace ring {

std::vector<std::string> attention_kind_names() {
  std::vector<std::string> names;
  for (const AttentionKind& kind : attention_kinds()) names.push_back(kind.name);
  return names;
}

void PatternOptions::add_to(CLI::App& cmd) {
  add_number(cmd, "--window", window, "Of windows: keys that a query sees", 1, kMostLength)->capture_default_str();
  add_number(cmd, "--sinks", sinks, "Of windows: first keys that all see", 0, kMostLength)->capture_default_str();
  add_number(cmd, "--segments", segments, "Of dilated attention, with commas", 1, kMostLength)->capture_default_str();
  add_number(cmd, "--rates", rates, "Of dilated attention, with commas", 1, kMostLength)->capture_default_str();
  cmd.add_flag("--dedup", dedup, "Of dilated attention: pairs count once");
  add_number(cmd, "--block", block, "Of block patterns: 64 or 128", 64, 128)->capture_default_str();
  add_number(cmd, "--density", density, "Of block patterns: share of blocks, drawn at random", 0, 1)
      ->capture_default_str();
}

void PatternOptions::add_content_to(CLI::App& cmd) {
  CLI::Option* keeps = add_number(
      cmd, "--keep", keep,
      "Of block patterns: blocks that each block of queries keeps, by content (pattern: content), instead of --density",
      1, kMostLength);
  keeps->excludes("--density");
  add_number(cmd, "--local", local, "Of --keep: newest blocks that are kept in any case", 1, kMostLength)
      ->capture_default_str()
      ->needs(keeps);
  add_number(cmd, "--first", first, "Of --keep: blocks at the start that are kept in any case", 0, kMostLength)
      ->capture_default_str()
      ->needs(keeps);
}

Pattern PatternOptions::of(const std::string& kind) const {
  const AttentionKind& of = attention_kind(kind);
  AttentionConfig c{.kind = kind};
  const auto set = [&](const char* setting, auto& to, const auto& value) {
    if (of.reads(setting)) to = value;
  };
  set("window", c.window, window);
  set("sinks", c.sinks, sinks);
  set("segments", c.segments, segments);
  set("rates", c.rates, rates);
  set("dedup", c.dedup, dedup);
  set("block", c.block, block);
  const BlockRuleConfig random{.pattern = BlockChoice::random, .density = density, .seed = 1};
  const BlockRuleConfig content{.pattern = BlockChoice::content, .local = local, .first = first, .keep = keep};
  set("rules", c.rules, std::vector{keep ? content : random});
  std::vector<SettingProblem> errors;
  for (const BlockRuleConfig& rule : c.rules) rule.validate(errors);
  c.validate(errors);
  if (!errors.empty()) fail("--", errors.front().text);
  return of.pattern(c, {.kv_heads = 1, .context = 1});
}

}  // namespace ring
