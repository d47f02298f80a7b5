#pragma once
// The attention section of a model: its kind, and which layers have which.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/pattern.h"

namespace ring {

class Fields;

enum class BlockChoice : std::uint8_t { local_global, strided, hierarchical, random, file };

// Numbers are in blocks; kernels/attention/blocks.h defines the rules.
struct BlockRuleConfig {
  BlockChoice pattern = BlockChoice::local_global;
  std::int64_t local = 1, first = 0, every = 0;
  double density = 0;
  std::uint64_t seed = 0;
  std::string file;
  void fields(Fields&);
  void validate(std::vector<std::string>& errors) const;
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::dense;
  std::int64_t window = 0, sinks = 0;
  std::vector<std::int64_t> segments, rates;
  bool dedup = false;
  std::int64_t block = 0;  // 0: 128
  std::vector<BlockRuleConfig> rules;
  std::vector<std::int64_t> heads;  // the rule of each KV head, from the first again where they end; empty: rule 0
  void fields(Fields&);
  void validate(std::vector<std::string>& errors) const;
};

struct LayerAttentionConfig {
  std::string layers;
  AttentionConfig attention;
  void fields(Fields&);
};

}  // namespace ring
