#pragma once
// The attention section of a model: its kind and the settings of all kinds, and which layers have which.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/setting_problem.h"
#include "core/token_schedule.h"

namespace ring {

class Fields;

enum class BlockChoice : std::uint8_t {
  local_global,
  strided,
  hierarchical,
  random,
  file,
  content,
  learned,
  importance
};

// Numbers are in blocks; kernels/attention/blocks.h defines the rules.
struct BlockRuleConfig {
  BlockChoice pattern = BlockChoice::local_global;
  std::int64_t local = 1, first = 0, every = 0;
  std::int64_t keep = 0;  // the largest of the run
  TokenSchedule keeps;    // of steps that begin after so many tokens; empty: all have `keep`
  double mass = 1;        // 1: keep all of these
  double density = 0;
  std::uint64_t seed = 0;
  std::string file;
  std::int64_t interval = 200, explore = 0;  // of importance
  double decay = 0.9;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

enum class Pooling : std::uint8_t { mean, learned };

// What a setting means depends on the kind, which refuses those that it does not read (model/attention/kinds.h).
struct AttentionConfig {
  std::string kind = "dense";
  std::int64_t window = 0, sinks = 0;
  std::vector<std::int64_t> segments, rates;
  bool dedup = false;
  std::int64_t block = 0;
  std::vector<BlockRuleConfig> rules;
  std::vector<std::int64_t> heads;
  std::int64_t reuse = 1;
  std::vector<std::int64_t> pools;
  Pooling pooling = Pooling::mean;
  bool pool_gates = false;
  std::int64_t index_heads = 4, index_head_dim = 32;  // of pattern: learned
  std::int64_t index_distances = 0;
  double index_loss = 1;
  std::int64_t index_warmup_steps = 0;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

// The rule that a KV head follows, of a section of kind block_sparse.
const BlockRuleConfig& rule_of_head(const AttentionConfig&, std::int64_t kv_head);
// Whether an indexer learns which blocks some of the section's heads keep.
bool learns_blocks(const AttentionConfig&);

// The settings, other than the kind, that differ from their defaults: names, and values as text.
std::vector<std::pair<std::string, std::string>> given_settings(AttentionConfig);

struct LayerAttentionConfig {
  std::string layers;
  AttentionConfig attention;
  void fields(Fields&);
};

}  // namespace ring
