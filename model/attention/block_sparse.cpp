// Block-sparse attention, by rules or from a file.
#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/fields.h"
#include "core/setting_problem.h"
#include "model/attention/block_file.h"
#include "model/attention/block_rules.h"
#include "model/attention/kinds.h"
#include "model/attention/pools.h"

namespace ring {
namespace {

constexpr std::int64_t kMaxRuleBlocks = 1 << 24;

const Choices<BlockChoice>& block_patterns() {
  static const auto names = choices<BlockChoice>({{"local_global", BlockChoice::local_global},
                                                  {"strided", BlockChoice::strided},
                                                  {"hierarchical", BlockChoice::hierarchical},
                                                  {"random", BlockChoice::random},
                                                  {"file", BlockChoice::file},
                                                  {"content", BlockChoice::content},
                                                  {"learned", BlockChoice::learned},
                                                  {"importance", BlockChoice::importance}});
  return names;
}

std::string name_of(BlockChoice pattern) {
  for (const auto& [name, choice] : block_patterns().names)
    if (choice == pattern) return name;
  return "";
}

}  // namespace

std::int64_t block_size_of(const AttentionConfig& c) {
  constexpr std::int64_t usual = 128;
  return c.block ? c.block : usual;
}

void BlockRuleConfig::fields(Fields& f) {
  f("pattern", pattern, "which blocks of keys a block of queries sees", block_patterns(),
    docs_page("attention_blocks.md#rules"));
  f("local", local, "number of nearest blocks, which are always seen; not for file", in_range(1, kMaxRuleBlocks));
  f("first", first, "local_global, content, learned, importance: number of leading blocks that all blocks see",
    in_range(0, kMaxRuleBlocks));
  f("every", every, "local_global: also see multiples of this; strided: distances that are multiples; 0 = none",
    in_range(0, kMaxRuleBlocks), docs_page("attention_blocks.md#rules"));
  f("keep", keep, "content, learned, importance: blocks that a query block sees; a list changes it by tokens",
    in_range(0, kMaxRuleBlocks), by_tokens(keeps), docs_page("attention_selected.md#by-content"));
  f("mass", mass, "content, learned: share of the scores' softmax to reach with at most keep blocks; 1 = keep blocks",
    in_range(0, 1), docs_page("attention_selected.md#fewer-blocks-where-few-suffice"));
  f("density", density, "random: share of blocks to keep, above 0", in_range(0, 1));
  f("seed", seed, "random, importance: seed for drawing blocks", in_range(0, std::numeric_limits<std::int64_t>::max()));
  f("file", file, "file: path of the text file with the blocks", rank_local());
  f("interval", interval, "importance: steps between choices of blocks, with 8 measurements in between",
    in_range(1, 1 << 30), docs_page("attention_selected.md#by-importance"));
  f("explore", explore, "importance: number of kept blocks that are drawn at random in each choice",
    in_range(0, kMaxRuleBlocks));
  f("decay", decay, "importance: decay of the moving average of measured attention masses", in_range(0, 0.999999));
}

namespace {

// Returns the problem of a setting that the rule's `pattern` does not read. If `pattern` was given after the setting,
// the setting is dropped instead (see foreign_setting_problem()).
SettingProblem foreign_beside_pattern(const std::string& key, const std::string& text) {
  BlockRuleConfig plain;
  const config::Node defaults = bind_config(plain);
  const auto field = std::ranges::find(defaults.fields, key, &config::Field::name);
  RING_CHECK(field != defaults.fields.end(), key, " is not a setting of a rule");
  return inherited_setting(key, "pattern", config::to_text(field->node.get()), text);
}

}  // namespace

void BlockRuleConfig::validate(std::vector<SettingProblem>& errors) const {
  const auto foreign = [&](bool given, const char* key, const std::string& value, const char* home) {
    if (!given) return;
    const std::string text = foreign_setting(key, value, home, "pattern: " + name_of(pattern));
    errors.push_back(foreign_beside_pattern(key, text));
  };
  const auto is = [&](BlockChoice p) { return pattern == p; };
  const bool has_every = is(BlockChoice::local_global) || is(BlockChoice::strided);
  foreign(local != 1 && is(BlockChoice::file), "local", str(local), "every pattern except file");
  const bool selects = chooses_blocks(*this);
  const bool has_first = is(BlockChoice::local_global) || selects;
  foreign(first != 0 && !has_first, "first", str(first), "pattern: local_global, content, learned and importance");
  foreign(every != 0 && !has_every, "every", str(every), "pattern: local_global and strided");
  foreign(keep != 0 && !selects, "keep", str(keep), "pattern: content, learned and importance");
  foreign(mass != 1 && !is(BlockChoice::content) && !is(BlockChoice::learned), "mass", str(mass),
          "pattern: content and learned");
  foreign(density != 0 && !is(BlockChoice::random), "density", str(density), "pattern: random");
  foreign(seed != 0 && !is(BlockChoice::random) && !is(BlockChoice::importance), "seed", str(seed),
          "pattern: random and importance");
  foreign(!file.empty() && !is(BlockChoice::file), "file", file, "pattern: file");
  const BlockRuleConfig plain;
  const auto of_importance = [&](bool given, const char* key, const std::string& value) {
    foreign(given && !is(BlockChoice::importance), key, value, "pattern: importance");
  };
  of_importance(interval != plain.interval, "interval", str(interval));
  of_importance(explore != plain.explore, "explore", str(explore));
  of_importance(decay != plain.decay, "decay", str(decay));
  if (is(BlockChoice::strided) && every == 0)
    errors.push_back("every: expected the distance between columns of pattern: strided, at least 1, got 0");
  if (is(BlockChoice::random) && random_threshold(density) == 0)
    errors.push_back(
        str("density: expected the share of blocks that pattern: random keeps, such as 0.1, got ", density));
  if (static_cast<float>(mass) == 0)
    errors.push_back(str("mass: expected a share above 0, got ", mass,
                         ". Set it to the share of the softmax that the kept candidates reach together, such as 0.9, "
                         "or to 1 to keep as many blocks as keep allows"));
  const std::int64_t min = min_keep(*this);
  if (is(BlockChoice::importance) && !keeps.empty())
    errors.push_back("keep: expected one number for pattern: importance, whose budget is constant, got a list");
  if (selects && min <= local + first)
    errors.push_back(str("keep: ", keep == 0 ? "missing, or 0" : std::to_string(min),
                         ", but pattern: ", name_of(pattern), " needs more than local + first = ", local + first,
                         " blocks, which are always kept. Set it to ", local + first + 1,
                         " or more, or use pattern: local_global"));
  else if (is(BlockChoice::importance) && explore >= keep - local - first)
    errors.push_back(str(
        "explore: ", explore, " blocks, but of keep: ", keep, " only ", keep - local - first,
        " are neither local nor first, and at least one is chosen by its importance. ",
        keep - local - first > 1 ? str("Set explore to ", keep - local - first - 1, " or less") : "Leave explore out",
        ", or raise keep"));
  if (is(BlockChoice::file) && file.empty())
    errors.push_back("file: expected the path of a text file with the blocks of pattern: file, got nothing");
}

const BlockRuleConfig& rule_of_head(const AttentionConfig& c, std::int64_t kv_head) {
  const std::int64_t rule = c.heads.empty() ? 0 : c.heads[static_cast<std::size_t>(kv_head) % c.heads.size()];
  return c.rules[static_cast<std::size_t>(rule)];
}

namespace {

bool some_head_follows(const AttentionConfig& c, BlockChoice pattern) {
  if (c.kind != "block_sparse" || c.rules.empty()) return false;
  for (std::int64_t h = 0; h < std::max<std::int64_t>(1, std::ssize(c.heads)); ++h)
    if (rule_of_head(c, h).pattern == pattern) return true;
  return false;
}

}  // namespace

bool learns_blocks(const AttentionConfig& c) { return some_head_follows(c, BlockChoice::learned); }

namespace {

// Checks the indexer's settings. A layer selects by one kind of score, and indexer settings need an indexer.
void validate_index(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  const bool learned = learns_blocks(c);
  if (learned && some_head_follows(c, BlockChoice::content))
    errors.push_back(
        "rules: pattern: content and pattern: learned cannot be combined in one layer. Put one of them into different "
        "layers (model.attention_layers)");
  for (const auto& [key, value] : given_settings(c))
    if (key.starts_with("index_") && !learned)
      errors.push_back(foreign_setting_problem(
          "rules", key, foreign_setting(key, value, "rules with pattern: learned", "a section without such a rule")));
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
  const auto some = [&](const auto& is) { return std::ranges::any_of(c.rules, is); };
  const auto is = [](BlockChoice pattern) {
    return [pattern](const BlockRuleConfig& r) { return r.pattern == pattern; };
  };
  if (some([](const BlockRuleConfig& r) { return !r.keeps.empty(); }) && some(is(BlockChoice::file)))
    errors.push_back(
        "rules: a keep that changes by tokens cannot be combined with pattern: file, which is read once. Give these "
        "heads a different pattern, or a constant keep");
  if (c.layers_per_selection > 1 && some(is(BlockChoice::learned)))
    errors.push_back(str("layers_per_selection: ", c.layers_per_selection,
                         " layers would share a selection, but an indexer selects for its own layer only. Leave "
                         "layers_per_selection "
                         "out, or use pattern: content"));
  else if (c.layers_per_selection > 1 && !some(is(BlockChoice::content)))
    errors.push_back(str("layers_per_selection: ", c.layers_per_selection,
                         " layers would share a selection, but no rule selects blocks. Add pattern: content, or leave "
                         "layers_per_selection out"));
  if (some(is(BlockChoice::importance)) && (some(is(BlockChoice::content)) || some(is(BlockChoice::learned))))
    errors.push_back(
        "rules: pattern: importance cannot be combined with content or learned in one layer. Put them into different "
        "layers (model.attention_layers)");
  if (some(is(BlockChoice::importance)) && !c.pools.empty())
    errors.push_back(
        "pools: pattern: importance cannot measure blocks in layers with pools. Leave pools out, or use different "
        "rules");
  validate_pools(c, errors);
  if (errors.empty()) validate_index(c, errors);
}

BlockRule rule_of(const BlockRuleConfig& c) {
  BlockRule r;
  switch (c.pattern) {
    case BlockChoice::local_global: r.kind = BlockRuleKind::local_global; break;
    case BlockChoice::strided: r.kind = BlockRuleKind::strided; break;
    case BlockChoice::hierarchical: r.kind = BlockRuleKind::hierarchical; break;
    case BlockChoice::random: r.kind = BlockRuleKind::random; break;
    case BlockChoice::content:
    case BlockChoice::learned:
      r.kind = BlockRuleKind::content;
      break;  // the kernel's rule is the same: only the scores come from an indexer
    // Keeps the newest blocks until masses are measured; then BlockImportance makes the patterns
    // (model/attention/importance.h).
    case BlockChoice::importance: r.kind = BlockRuleKind::local_global; break;
    case BlockChoice::file: break;  // replaced by the file's rules
  }
  r.local = narrow<std::int32_t>(c.pattern == BlockChoice::importance ? c.keep - c.first : c.local);
  r.first = narrow<std::int32_t>(c.first);
  r.every = narrow<std::int32_t>(c.every);
  r.keep = narrow<std::int32_t>(c.keep);
  r.mass = static_cast<float>(c.mass);
  r.threshold = random_threshold(c.density);
  r.seed = c.seed;
  return r;
}

// Throws Error, naming the file, if the file's pattern does not cover the context (see check_covers()).
void check_files_cover(const AttentionConfig& c, const BlockPattern& p, const ModelSizes& model) {
  for (std::int64_t head = 0; head < model.kv_heads; ++head) {
    const BlockRuleConfig& rule = rule_of_head(c, head);
    const std::int64_t rows = p.rule(narrow<std::int32_t>(head)).rows;
    if (rule.pattern == BlockChoice::file && rows * p.block() < model.context)
      fail("rules[", &rule - c.rules.data(), "].file: ", rule.file, ": ends after ", counted(rows, "query block"),
           ", but a context of ", model.context, " tokens has ", (model.context + p.block() - 1) / p.block(), " of ",
           p.block(), ". Add lines for the others, or shorten model.context");
  }
}

Pattern block_sparse_pattern(const AttentionConfig& c, const ModelSizes& model) {
  std::vector<BlockRule> rules;
  std::vector<std::string> files;
  for (const BlockRuleConfig& rule : c.rules) {
    rules.push_back(rule_of(rule));
    files.push_back(rule.file);
  }
  const std::vector<std::int32_t> heads(c.heads.begin(), c.heads.end());
  const auto blocks = std::make_shared<const BlockPattern>(
      block_pattern(narrow<std::int32_t>(block_size_of(c)), std::move(rules), files, heads, model.kv_heads));
  check_files_cover(c, *blocks, model);
  Pattern p;
  p.blocks = blocks;
  return with_pools(p, c);
}

// Returns "8", or "64 to 16".
std::string keep_text(const BlockRuleConfig& r) {
  if (r.keeps.empty()) return str(r.keep);
  return str(r.keeps.front().value, " to ", r.keeps.back().value);
}

std::string rule_text(const BlockRuleConfig& r) {
  const std::string local = str("local ", r.local);
  switch (r.pattern) {
    case BlockChoice::local_global:
      return str("local_global, ", local, ", first ", r.first, r.every ? str(", every ", r.every) : "");
    case BlockChoice::strided: return str("strided, ", local, ", every ", r.every);
    case BlockChoice::hierarchical: return "hierarchical, " + local;
    case BlockChoice::random: return str("random, ", local, ", density ", r.density, ", seed ", r.seed);
    case BlockChoice::content:
    case BlockChoice::learned:
      return str(name_of(r.pattern), ", ", local, ", first ", r.first, ", keep ", r.mass < 1 ? "at most " : "",
                 keep_text(r), r.mass < 1 ? str(", mass ", r.mass) : "");
    case BlockChoice::importance:
      return str("importance, ", local, ", first ", r.first, ", keep ", r.keep, ", explore ", r.explore, ", interval ",
                 r.interval, ", decay ", r.decay);
    case BlockChoice::file: break;
  }
  return "file " + r.file;
}

std::string block_sparse_text(const AttentionConfig& c, std::optional<std::int64_t> kv_head) {
  const std::string start =
      str("block_sparse, blocks of ", block_size_of(c),
          c.layers_per_selection > 1 ? str(", selected once in ", c.layers_per_selection, " layers") : "");
  if (kv_head) {
    return str(start, ": ", rule_text(rule_of_head(c, *kv_head)), pools_text(c));
  }
  std::string text = start;
  for (std::size_t i = 0; i < c.rules.size(); ++i)
    text += str(c.rules.size() > 1 ? str("; rule ", i, ": ") : ": ", rule_text(c.rules[i]));
  if (!c.heads.empty()) text += "; rules of heads " + list_text(c.heads);
  return text + pools_text(c);
}

}  // namespace

AttentionKind block_sparse_attention() {
  return {.name = "block_sparse",
          .keys = "blocks",
          .settings = {{"block", "tokens of a block, 64 or 128; 0 = 128"},
                       {"rules", "block patterns that heads choose from"},
                       {"heads", "rule of each KV head, counted from 0; a shorter list is repeated; [] = all 0"},
                       {"layers_per_selection",
                        "consecutive layers that share the first one's selection; 1 = each layer selects"},
                       {"pools", "same"},
                       {"pooling", "same"},
                       {"pool_gates", "same"},
                       {"index_heads", "pattern learned: heads of the indexer"},
                       {"index_head_dim", "pattern learned: channels per indexer head"},
                       {"index_distances", "pattern learned: distance buckets, each with a learned bias; 0 = none"},
                       {"index_loss", "pattern learned: factor for the gradient of the indexer's loss"},
                       {"index_warmup_steps",
                        "pattern learned: optimizer steps that keep all blocks while the indexer learns"}},
          .validate = validate_block_sparse,
          .pattern = block_sparse_pattern,
          .text = block_sparse_text};
}

}  // namespace ring
