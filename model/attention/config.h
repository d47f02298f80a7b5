#pragma once
// The attention section of a model's settings: the kind, the settings of all kinds, and the layers that each section
// applies to.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/setting_problem.h"
#include "core/token_schedule.h"

namespace ring {

class Fields;

// A rule of block-sparse attention; numbers count blocks. kernels/attention/blocks.h defines the rules. The pattern
// defines what a setting means, and refuses settings that it does not read (model/attention/block_patterns.h).
struct BlockRuleConfig {
  std::string pattern = "local_global";
  std::int64_t local = 1, first = 0, every = 0;
  std::int64_t keep = 0;  // kept blocks; the largest value during the run
  TokenSchedule keeps;    // `keep` by trained tokens; empty if it never changes
  double mass = 1;        // share of attention mass to keep; 1 keeps all `keep` blocks
  double density = 0;
  std::uint64_t seed = 0;
  std::string file;
  std::int64_t interval = 200, explore = 0;  // only for pattern: importance
  double decay = 0.9;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

enum class Pooling : std::uint8_t { mean, learned };

// The kind defines what a setting means, and refuses settings that it does not read (model/attention/kinds.h).
struct AttentionConfig {
  std::string kind = "dense";
  std::int64_t window = 0, sinks = 0;
  std::vector<std::int64_t> segments, rates;
  bool dedup = false;
  std::int64_t block = 0;
  std::vector<BlockRuleConfig> rules;
  std::vector<std::int64_t> heads;
  std::int64_t layers_per_selection = 1;
  std::vector<std::int64_t> pools;
  Pooling pooling = Pooling::mean;
  bool pool_gates = false;
  std::int64_t index_heads = 4, index_head_dim = 32;  // only for pattern: learned
  std::int64_t index_distances = 0;
  double index_loss = 1;
  std::int64_t index_warmup_steps = 0;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

// Returns the rule that a KV head follows in a block_sparse section.
const BlockRuleConfig& rule_of_head(const AttentionConfig&, std::int64_t kv_head);
// Return true if an indexer chooses the blocks: for the heads
// that follow the rule, or for at least one head of the section.
bool learns_blocks(const BlockRuleConfig&);
bool learns_blocks(const AttentionConfig&);

// Returns the settings, other than the kind, that differ from their defaults: names, and values as text.
std::vector<std::pair<std::string, std::string>> given_settings(AttentionConfig);

struct LayerAttentionConfig {
  std::string layers;
  AttentionConfig attention;
  void fields(Fields&);
};

}  // namespace ring
