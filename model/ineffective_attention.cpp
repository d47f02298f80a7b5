#include "model/ineffective_attention.h"

#include <algorithm>

#include "core/check.h"
#include "core/counted.h"
#include "model/attention/block_rules.h"
#include "model/attention/kinds.h"

namespace ring {
namespace {

// Reports entries of `heads` after the last KV head. (The list repeats, so a shorter one is fine.)
std::string idle_heads(const AttentionConfig& c, std::int64_t kv_heads) {
  const auto given = std::ssize(c.heads);
  if (given <= kv_heads) return "";
  return str("heads: a list of ", given, ", but the model has ", counted(kv_heads, "KV head"),
             " (model.kv_heads). Entries after the first ", kv_heads, " have no effect. Shorten the list");
}

// Reports a window that covers the longest sequence.
std::string idle_window(const AttentionConfig& c, std::int64_t longest) {
  if (c.kind != "window" || c.window < longest) return "";
  return str("window: ", c.window, ", but the longest sequence has ", longest, " tokens, so that every token sees all ",
             "earlier ones, as in dense attention. Lower window, or train longer sequences");
}

// Reports pools that no token sees. A token sees the pools that end before it.
std::string idle_pools(const AttentionConfig& c, std::int64_t longest) {
  const auto seen = [&](std::int64_t size) { return size < longest; };
  const auto idle = std::ranges::find_if_not(c.pools, seen);
  if (idle == c.pools.end()) return "";
  return str("pools: [", list_text(c.pools), "]: no pool of ", *idle,
             " tokens ends before the last token of a sequence of ", longest, ", so none is ever seen. Leave ",
             idle == c.pools.begin() ? "pools" : "it", " out");
}

// Reports rules that keep all blocks of the longest sequence, so that there is nothing to choose.
std::string idle_choice(const AttentionConfig& c, std::int64_t longest) {
  const std::int64_t block = block_size_of(c), blocks = (longest + block - 1) / block;
  const std::string has = str("the longest sequence, of ", longest, " tokens, has ", counted(blocks, "block"), " of ");
  for (std::size_t i = 0; i < c.rules.size(); ++i) {
    const BlockRuleConfig& r = c.rules[i];
    if (r.pattern == BlockChoice::learned && blocks <= r.local + r.first)
      return str("rules[", i, "]: pattern: learned keeps local + first = ", r.local + r.first, " blocks anyway, and ",
                 has, block, ". Its indexer has nothing to choose from and learns nothing, not even in the warm-up. ",
                 "Train longer sequences, or lower local, first or block");
    if (chooses_blocks(r) && min_keep(r) >= blocks)
      return str("rules[", i, "].keep: ", min_keep(r), ", but ", has, block, ". All of them are kept, as in dense ",
                 "attention, and selecting them only costs time. Lower keep, or train longer sequences");
  }
  return "";
}

// Reports rules that would choose blocks for the first time only after the last step.
std::string idle_wait(const AttentionConfig& c, std::int64_t steps) {
  const std::string end = str(", but training ends with step ", steps, " (train.steps): ");
  if (learns_blocks(c) && c.index_warmup_steps >= steps)
    return str("index_warmup_steps: ", c.index_warmup_steps, end,
               "attention stays dense and no block is selected. Lower it, or train longer");
  for (std::size_t i = 0; i < c.rules.size(); ++i)
    if (const BlockRuleConfig& r = c.rules[i]; r.pattern == BlockChoice::importance && r.interval >= steps)
      return str("rules[", i, "].interval: ", r.interval, end,
                 "no blocks are chosen, and the most recent ones are kept. Lower it, or train longer");
  return "";
}

void add_idle(const std::string& key, const AttentionConfig& c, const ModelConfig& model, std::int64_t longest,
              std::int64_t steps, std::vector<std::string>& all) {
  for (const std::string& text : {idle_heads(c, model.kv_heads), idle_window(c, longest), idle_pools(c, longest),
                                  idle_choice(c, longest), idle_wait(c, steps)})
    if (!text.empty()) all.push_back(str(key, ".", text));
}

bool is_plain(const AttentionConfig& c) {
  return c.kind != "window" && c.pools.empty() && c.heads.empty() && std::ranges::none_of(c.rules, chooses_blocks);
}

}  // namespace

bool may_be_ineffective(const ModelConfig& model) {
  const auto plain = [](const LayerAttentionConfig& entry) { return is_plain(entry.attention); };
  return !is_plain(model.attention) || !std::ranges::all_of(model.attention_layers, plain);
}

std::vector<std::string> ineffective_attention(const ModelConfig& model, std::int64_t longest, std::int64_t steps) {
  std::vector<std::string> all;
  add_idle("model.attention", model.attention, model, longest, steps, all);
  for (std::size_t i = 0; i < model.attention_layers.size(); ++i)
    add_idle(str("model.attention_layers[", i, "].attention"), model.attention_layers[i].attention, model, longest,
             steps, all);
  return all;
}

}  // namespace ring
