#pragma once
// The patterns of block-sparse attention. A pattern defines how the settings of a rule determine the blocks that a head
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

// The information by which a rule chooses the blocks to keep.
enum class BlockChooser : std::uint8_t {
  none,     // only the settings
  content,  // a selection in each forward, by the contents of blocks
  indexer,  // a selection in each forward, by the scores of the layer's indexer
  masses    // attention masses, which are measured at intervals
};

// The block rules of a layer's KV heads, in the form that BlockPattern takes (kernels/attention/blocks.h).
struct RulesOfHeads {
  std::vector<BlockRule> rules;
  std::vector<std::int32_t> of_head;
  std::vector<std::uint32_t> bits;
};

// The KV heads that follow a rule, and the number of tokens per block and in the context.
struct HeadsOfRule {
  std::vector<std::int32_t> heads;
  std::int64_t block = 0, context = 0;
};

struct BlockPatternKind {
  std::string name;                   // the value of a rule's `pattern`
  std::vector<std::string> settings;  // the settings of a rule that the pattern reads
  BlockChooser chooser = BlockChooser::none;
  // Returns the rule for the kernels. May be null if `draw` is set.
  std::function<BlockRule(const BlockRuleConfig&)> rule;
  // For blocks that no kernel rule expresses: appends drawn rules and their bits, and sets of_head for these heads.
  // Throws Error for problems that only the model or a file can reveal; the message begins with the key.
  std::function<void(const BlockRuleConfig&, const HeadsOfRule&, RulesOfHeads&)> draw;
  std::function<std::string(const BlockRuleConfig&)> text;  // returns the rule in words: "strided, local 1, every 2"

  // Appends problems with these settings. The core itself reports settings of other patterns, and too small a `keep`.
  std::function<void(const BlockRuleConfig&, std::vector<SettingProblem>& errors)> validate;
  // Appends problems with a section that has such a rule. The core itself reports heads with different choosers.
  std::function<void(const AttentionConfig&, std::vector<SettingProblem>& errors)> validate_section;
  // Settings of the section that only this pattern reads, with their
  // meaning. Ignored for patterns that are added by a program.
  std::vector<std::pair<std::string, std::string>> section_settings;
  std::vector<TrainedPart> trained_parts;

  // Return why rules[i] has no effect, beginning with the key; "" if it has an effect. idle_choice: the rule has
  // nothing to choose from. idle_wait: the rule would choose only after the last step.
  using Ineffective = std::function<std::string(const AttentionConfig&, std::size_t i, const TrainingSizes&)>;
  Ineffective idle_choice, idle_wait;

  bool reads_setting(const std::string& setting) const;  // true if the pattern reads this setting of a rule
};

// Returns the patterns in the order in which they are listed. Programs may add patterns before settings are read.
std::vector<BlockPatternKind>& block_patterns();
const BlockPatternKind& block_pattern_of(const BlockRuleConfig&);  // throws Error if no pattern has the rule's name

// Returns true if the `keep` blocks are chosen at run time, either in each forward or from measurements.
bool chooses_blocks(const BlockRuleConfig&);
bool selects_in_forward(const BlockPatternKind&);  // true if each forward makes a selection

// Returns the smallest value that the rule's `keep` takes during the run.
std::int64_t min_keep(const BlockRuleConfig&);

// Return the number of blocks for `tokens` tokens, and "the longest sequence, of 200 tokens, has 4 blocks of 64".
std::int64_t num_blocks(const AttentionConfig&, std::int64_t tokens);
std::string longest_text(const AttentionConfig&, std::int64_t longest);

}  // namespace ring
