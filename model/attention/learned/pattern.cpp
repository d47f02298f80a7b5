// Blocks selected by an indexer (model/attention/learned/indexer.h).
#include "core/check.h"
#include "model/attention/block_patterns.h"

namespace ring {

BlockPatternKind content_blocks();  // selected/pattern.cpp

namespace {

void validate_beside_learned(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  if (c.layers_per_selection > 1)
    errors.push_back(str("layers_per_selection: ", c.layers_per_selection,
                         " layers would share a selection, but an indexer selects for its own layer only. Leave "
                         "layers_per_selection out, or use pattern: content"));
}

std::string idle_indexer(const AttentionConfig& c, std::size_t i, const TrainingSizes& t) {
  const BlockRuleConfig& r = c.rules[i];
  if (num_blocks(c, t.longest) > r.local + r.first) return "";
  return str("rules[", i, "]: pattern: learned keeps local + first = ", r.local + r.first, " blocks anyway, and ",
             longest_text(c, t.longest), ". Its indexer has nothing to choose from and learns nothing, not even in ",
             "the warm-up. Train longer sequences, or lower local, first or block");
}

std::string endless_warmup(const AttentionConfig& c, std::size_t, const TrainingSizes& t) {
  if (!learns_blocks(c) || c.index_warmup_steps < t.steps) return "";
  return str("index_warmup_steps: ", c.index_warmup_steps, ", but training ends with step ", t.steps,
             " (train.steps): attention stays dense and no block is selected. Lower it, or train longer");
}

}  // namespace

// The kernels use the rule of pattern: content. Only the scores differ: they come from the indexer.
BlockPatternKind learned_blocks() {
  BlockPatternKind p = content_blocks();
  p.name = "learned";
  p.chooser = BlockChooser::indexer;
  p.validate_section = validate_beside_learned;
  p.section_settings = {
      {"index_heads", "pattern learned: heads of the indexer"},
      {"index_head_dim", "pattern learned: channels per indexer head"},
      {"index_distances", "pattern learned: distance buckets, each with a learned bias; 0 = none"},
      {"index_loss", "pattern learned: factor for the gradient of the indexer's loss"},
      {"index_warmup_steps", "pattern learned: optimizer steps that keep all blocks while the indexer learns"}};
  p.trained_parts = {{learns_blocks, "an indexer", "select blocks", "pattern: learned", "pattern: content"}};
  p.idle_choice = idle_indexer;
  p.idle_wait = endless_warmup;
  return p;
}

}  // namespace ring
