#include "cli/pattern_options.h"

#include "cli/command.h"
#include "core/check.h"
#include "model/attention/kinds.h"

namespace ring {

std::vector<std::string> attention_kind_names() {
  std::vector<std::string> names;
  for (const AttentionKind& kind : attention_kinds()) names.push_back(kind.name);
  return names;
}

void PatternOptions::add_to(Command cmd) {
  cmd.add_number("--window", window, "With --kind window: keys that a query sees", 1, kMaxLength).show_default();
  cmd.add_number("--sinks", sinks, "With --kind window: first keys, which all queries see", 0, kMaxLength)
      .show_default();
  cmd.add_number("--segments", segments, "With --kind dilated: segment lengths, with commas", 1, kMaxLength)
      .show_default();
  cmd.add_number("--rates", rates, "With --kind dilated: dilation rates, with commas", 1, kMaxLength).show_default();
  cmd.add_flag("--dedup", dedup, "With --kind dilated: count pairs of several branches once");
  cmd.add_number("--block", block, "With --kind block_sparse: tokens per block, 64 or 128", 64, 128).show_default();
  cmd.add_number("--density", density, "With --kind block_sparse: share of blocks, drawn at random", 0, 1)
      .show_default();
}

void PatternOptions::add_content_to(Command cmd) {
  cmd.add_number(
         "--keep", keep,
         "With --kind block_sparse: blocks that each query block selects (pattern: content), instead of --density", 1,
         kMaxLength)
      .excludes({"--density"});
  cmd.add_number("--local", local, "With --keep: newest blocks, which are always kept", 1, kMaxLength)
      .show_default()
      .needs("--keep");
  cmd.add_number("--first", first, "With --keep: blocks at the start, which are always kept", 0, kMaxLength)
      .show_default()
      .needs("--keep");
}

Pattern PatternOptions::pattern_of_kind(const std::string& kind) const {
  const AttentionKind& of = attention_kind(kind);
  AttentionConfig c{.kind = kind};
  const auto set = [&](const char* setting, auto& to, const auto& value) {
    if (of.reads_setting(setting)) to = value;
  };
  set("window", c.window, window);
  set("sinks", c.sinks, sinks);
  set("segments", c.segments, segments);
  set("rates", c.rates, rates);
  set("dedup", c.dedup, dedup);
  set("block", c.block, block);
  const BlockRuleConfig random{.pattern = "random", .density = density, .seed = 1};
  const BlockRuleConfig content{.pattern = "content", .local = local, .first = first, .keep = keep};
  set("rules", c.rules, std::vector{keep ? content : random});
  std::vector<SettingProblem> errors;
  for (const BlockRuleConfig& rule : c.rules) rule.validate(errors);
  c.validate(errors);
  if (!errors.empty()) fail("--", errors.front().text);
  return of.pattern(c, {.kv_heads = 1, .context = 1});
}

}  // namespace ring
