#include "model/idle_attention.h"

#include <algorithm>

#include "core/check.h"
#include "core/counted.h"
#include "model/attention/kinds.h"

namespace ring {
namespace {

// The entries of heads start over where the list ends, which may be never.
std::string idle_heads(const AttentionConfig& c, std::int64_t kv_heads) {
  const auto given = std::ssize(c.heads);
  if (given <= kv_heads) return "";
  return str("heads: a list of ", given, ", but the model has ", counted(kv_heads, "KV head"),
             " (model.kv_heads): what comes behind the first ", kv_heads, " means nothing. Shorten the list");
}

// A token sees the pools that end before it.
std::string idle_pools(const AttentionConfig& c, std::int64_t longest) {
  const auto seen = [&](std::int64_t size) { return size < longest; };
  const auto idle = std::ranges::find_if_not(c.pools, seen);
  if (idle == c.pools.end()) return "";
  return str("pools: [", list_text(c.pools), "]: no pool of ", *idle, " tokens ends before a token of a sequence of ",
             longest, ", so that none is ever seen. Leave ", idle == c.pools.begin() ? "pools" : "it", " out");
}

// An indexer chooses among the blocks that its rule does not keep anyway.
std::string idle_indexer(const AttentionConfig& c, std::int64_t longest) {
  const std::int64_t block = block_of(c), blocks = (longest + block - 1) / block;
  for (std::size_t i = 0; i < c.rules.size(); ++i) {
    const BlockRuleConfig& r = c.rules[i];
    if (r.pattern != BlockChoice::learned || blocks > r.local + r.first) continue;
    return str("rules[", i, "]: pattern: learned keeps local + first = ", r.local + r.first,
               " blocks anyway, and the longest sequence, of ", longest, " tokens, has ", counted(blocks, "block"),
               " of ", block, ": its indexer has nothing to choose from and learns nothing, in the warm-up neither. ",
               "Train longer sequences, or lower local, first or block");
  }
  return "";
}

void add_idle(const std::string& key, const AttentionConfig& c, const ModelConfig& model, std::int64_t longest,
              std::vector<std::string>& all) {
  for (const std::string& text : {idle_heads(c, model.kv_heads), idle_pools(c, longest), idle_indexer(c, longest)})
    if (!text.empty()) all.push_back(str(key, ".", text));
}

}  // namespace

std::vector<std::string> idle_attention(const ModelConfig& model, std::int64_t longest) {
  std::vector<std::string> all;
  add_idle("model.attention", model.attention, model, longest, all);
  for (std::size_t i = 0; i < model.attention_layers.size(); ++i)
    add_idle(str("model.attention_layers[", i, "].attention"), model.attention_layers[i].attention, model, longest,
             all);
  return all;
}

}  // namespace ring
