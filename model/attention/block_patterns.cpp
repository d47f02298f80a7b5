#include "model/attention/block_patterns.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/check.h"
#include "core/counted.h"
#include "core/fields.h"

namespace ring {

// Each pattern is defined in its own file, e.g. patterns/strided.cpp.
BlockPatternKind local_global_blocks();
BlockPatternKind strided_blocks();
BlockPatternKind hierarchical_blocks();
BlockPatternKind random_blocks();
BlockPatternKind blocks_from_file();
BlockPatternKind content_blocks();
BlockPatternKind learned_blocks();
BlockPatternKind importance_blocks();

std::vector<BlockPatternKind>& block_patterns() {
  static std::vector<BlockPatternKind> patterns = {local_global_blocks(), strided_blocks(),   hierarchical_blocks(),
                                                   random_blocks(),       blocks_from_file(), content_blocks(),
                                                   learned_blocks(),      importance_blocks()};
  return patterns;
}

const BlockPatternKind& block_pattern_of(const BlockRuleConfig& rule) {
  const auto found = std::ranges::find(block_patterns(), rule.pattern, &BlockPatternKind::name);
  RING_CHECK(found != block_patterns().end(), "pattern: ", rule.pattern, " does not exist");
  return *found;
}

bool BlockPatternKind::reads_setting(const std::string& setting) const {
  return std::ranges::find(settings, setting) != settings.end();
}

bool chooses_blocks(const BlockRuleConfig& r) { return block_pattern_of(r).chooser != BlockChooser::none; }

bool selects_in_forward(const BlockPatternKind& p) {
  return p.chooser == BlockChooser::content || p.chooser == BlockChooser::indexer;
}

std::int64_t min_keep(const BlockRuleConfig& r) {
  std::int64_t min = r.keep;
  for (const TokenChange& c : r.keeps) min = std::min(min, static_cast<std::int64_t>(c.value));
  return min;
}

std::int64_t num_blocks(const AttentionConfig& c, std::int64_t tokens) {
  return (tokens + block_size_of(c) - 1) / block_size_of(c);
}

std::string longest_text(const AttentionConfig& c, std::int64_t longest) {
  return str("the longest sequence, of ", longest, " tokens, has ", counted(num_blocks(c, longest), "block"), " of ",
             block_size_of(c));
}

namespace {

constexpr std::int64_t kMaxRuleBlocks = 1 << 24;

// Returns a value as text without quotes.
std::string unquoted(const config::Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return str(*number);
  const auto* text = std::get_if<std::string>(&value);
  return text ? *text : config::to_text(value);
}

// Returns the patterns that read a setting, as in "pattern: content and learned".
std::string patterns_that_read(const std::string& setting) {
  std::vector<std::string> readers, others;
  for (const BlockPatternKind& p : block_patterns()) (p.reads_setting(setting) ? readers : others).push_back(p.name);
  if (others.size() == 1) return "every pattern except " + others[0];
  std::string text;
  for (const std::string& name : readers)
    text += str(text.empty() ? "pattern: " : name == readers.back() ? " and " : ", ", name);
  return text;
}

// Adds a problem for each setting that the rule's pattern does not read. If `pattern` was given after the setting, the
// setting is dropped instead (see foreign_setting_problem()).
void refuse_foreign_settings(BlockRuleConfig rule, std::vector<SettingProblem>& errors) {
  const BlockPatternKind& pattern = block_pattern_of(rule);
  BlockRuleConfig plain;
  const config::Node mine = bind_config(rule), defaults = bind_config(plain);
  for (std::size_t i = 0; i < mine.fields.size(); ++i) {
    const std::string& key = mine.fields[i].name;
    const config::Value value = mine.fields[i].node.get(), unset = defaults.fields[i].node.get();
    if (key == "pattern" || value == unset || pattern.reads_setting(key)) continue;
    const std::string text = foreign_setting(key, unquoted(value), patterns_that_read(key), "pattern: " + pattern.name);
    errors.push_back(inherited_setting(key, "pattern", config::to_text(unset), text));
  }
}

}  // namespace

void BlockRuleConfig::fields(Fields& f) {
  Choices<std::string> patterns;
  for (const BlockPatternKind& p : block_patterns()) patterns.names.emplace_back(p.name, p.name);
  f("pattern", pattern, "which blocks of keys a block of queries sees", patterns,
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

void BlockRuleConfig::validate(std::vector<SettingProblem>& errors) const {
  refuse_foreign_settings(*this, errors);
  if (static_cast<float>(mass) == 0)
    errors.push_back(str("mass: expected a share above 0, got ", mass,
                         ". Set it to the share of the softmax that the kept candidates reach together, such as 0.9, "
                         "or to 1 to keep as many blocks as keep allows"));
  const BlockPatternKind& own = block_pattern_of(*this);
  if (own.validate) own.validate(*this, errors);
  if (const std::int64_t min = min_keep(*this); chooses_blocks(*this) && min <= local + first)
    errors.push_back(str("keep: ", keep == 0 ? "missing, or 0" : std::to_string(min), ", but pattern: ", pattern,
                         " needs more than local + first = ", local + first,
                         " blocks, which are always kept. Set it to ", local + first + 1,
                         " or more, or use pattern: local_global"));
}

}  // namespace ring
