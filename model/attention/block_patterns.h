#pragma once
// The patterns of rules of block-sparse attention. A pattern defines how a rule's settings say which blocks a head
// keeps. To add a pattern, add a file beside patterns/strided.cpp and two lines in block_patterns.cpp (docs/extend.md).

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/blocks.h"
#include "model/attention/config.h"
#include "model/attention/kinds.h"
#include "model/attention/trained_part.h"

namespace ring {

// Determines the blocks that a rule keeps, together with the rule's settings.
enum class BlockChooser : std::uint8_t {
  none,     // the settings alone
  content,  // a selection in each forward, by the content of blocks
  indexer,  // a selection in each forward, by the scores of the layer's indexer
  masses    // attention masses that are measured from time to time
};

// Rules of a layer's KV heads, as BlockPattern takes them (kernels/attention/blocks.h).
struct RulesOfHeads {
  std::vector<BlockRule> rules;
  std::vector<std::int32_t> of_head;
  std::vector<std::uint32_t> bits;
};

// The KV heads that follow a rule, and the tokens of a block and of the context.
struct HeadsOfRule {
  std::vector<std::int32_t> heads;
  std::int64_t block = 0, context = 0;
};

struct BlockPatternKind {
  std::string name;                   // the value of a rule's `pattern`
  std::vector<std::string> settings;  // the settings of a rule that the pattern reads
  BlockChooser chooser = BlockChooser::none;
  // Returns the kernels' rule. May be null if there is `draw`.
  std::function<BlockRule(const BlockRuleConfig&)> rule;
  // For blocks that no rule of the kernels expresses: appends drawn rules and their bits, and sets of_head of these
  // heads. Throws Error for problems that only the model or a file can reveal; the message begins with the key.
  std::function<void(const BlockRuleConfig&, const HeadsOfRule&, RulesOfHeads&)> draw;
  std::function<std::string(const BlockRuleConfig&)> text;  // returns the rule in words: "strided, local 1, every 2"

  // Adds the problems of these settings. The core reports settings of other patterns, and a `keep` that is too small.
  std::function<void(const BlockRuleConfig&, std::vector<SettingProblem>& errors)> validate;
  // Adds the problems of a section with such a rule. The core reports heads that select by different choosers.
  std::function<void(const AttentionConfig&, std::vector<SettingProblem>& errors)> validate_section;
  // Settings of the section that only this pattern reads, and their meaning. Those of patterns that a program adds are
  // not read.
  std::vector<std::pair<std::string, std::string>> section_settings;
  std::vector<TrainedPart> trained_parts;

  // idle_choice returns why rules[i] has nothing to choose from, and idle_wait why it chooses only after the last step.
  // The text begins with the key, and is "" if the rule has an effect.
  using Ineffective = std::function<std::string(const AttentionConfig&, std::size_t i, const TrainingSizes&)>;
  Ineffective idle_choice, idle_wait;

  bool reads_setting(const std::string& setting) const;  // of a rule
};

// Returns the patterns in the order in which they are listed. Programs may add patterns before settings are read.
std::vector<BlockPatternKind>& block_patterns();
const BlockPatternKind& block_pattern_of(const BlockRuleConfig&);  // throws Error if there is none

// Returns true if the `keep` blocks are chosen at run time, either in each forward or from measurements.
bool chooses_blocks(const BlockRuleConfig&);
bool selects_in_forward(const BlockPatternKind&);  // true if each forward makes a selection

// Returns the smallest `keep` of the run.
std::int64_t min_keep(const BlockRuleConfig&);

// Return the number of blocks of `tokens` tokens, and "the longest sequence, of 200 tokens, has 4 blocks of 64".
std::int64_t num_blocks(const AttentionConfig&, std::int64_t tokens);
std::string longest_text(const AttentionConfig&, std::int64_t longest);

}  // namespace ring
