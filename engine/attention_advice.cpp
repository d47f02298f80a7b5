#include "engine/attention_advice.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "engine/layouts.h"
#include "model/flops.h"

namespace ring {
namespace {

constexpr std::int64_t kFirstSegment = 2048;  // first segment of LongNet (Ding et al. 2023)
constexpr std::int64_t kSinks = 4;            // sinks of StreamingLLM (Xiao et al. 2023)
constexpr std::int64_t kBlock = 128, kLocalBlocks = 16;
constexpr double kShare = 0.25;  // attention's share of a step

AttentionConfig window_of(std::int64_t window) {
  AttentionConfig a;
  a.kind = "window";
  a.window = window;
  a.sinks = kSinks;
  return a;
}

AttentionConfig dilated_to(std::int64_t context) {
  AttentionConfig a;
  a.kind = "dilated";
  std::int64_t rate = 1;
  for (std::int64_t segment = std::min(kFirstSegment, context);; segment = std::min(2 * segment, context), rate *= 2) {
    a.segments.push_back(segment);
    a.rates.push_back(rate);
    if (segment == context) return a;
  }
}

AttentionConfig blocks_by(const BlockRuleConfig& rule) {
  AttentionConfig a;
  a.kind = "block_sparse";
  a.block = kBlock;
  a.rules.push_back(rule);
  return a;
}

AttentionConfig hierarchical() {
  BlockRuleConfig rule;
  rule.pattern = BlockChoice::hierarchical;
  rule.local = kLocalBlocks;
  return blocks_by(rule);
}

// Returns block-sparse attention over `tokens` tokens: always the first block and the two newest, and selected ones.
AttentionConfig selected(BlockChoice pattern, std::int64_t tokens) {
  BlockRuleConfig rule;
  rule.pattern = pattern;
  rule.first = 1;
  rule.local = 2;
  rule.keep = std::max(rule.first + rule.local + 1, tokens / kBlock);
  return blocks_by(rule);
}

AttentionConfig with_pools(AttentionConfig a) {
  a.pools = {kBlock};
  return a;
}

std::string list(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t v : values) text += str(text.empty() ? "" : ", ", v);
  return '[' + text + ']';
}

// pattern: that of the only rule, if there is one.
std::string yaml_of(const AttentionConfig& a, const std::string& pattern) {
  const std::string pools = a.pools.empty() ? "" : ", pools: " + list(a.pools);
  if (a.kind == "window") return str("{kind: window, window: ", a.window, ", sinks: ", a.sinks, pools, '}');
  if (a.kind == "dilated") return str("{kind: dilated, segments: ", list(a.segments), ", rates: ", list(a.rates), '}');
  if (a.kind == "block_sparse") {
    const BlockRuleConfig& rule = a.rules[0];
    const std::string chosen = rule.keep ? str(", first: ", rule.first, ", keep: ", rule.keep) : "";
    return str("{kind: block_sparse, block: ", a.block, ", rules: [{pattern: ", pattern, ", local: ", rule.local,
               chosen, "}]}");
  }
  return "{kind: dense}";
}

PlanQuestion with(PlanQuestion q, const AttentionConfig& attention) {
  q.config.model.attention = attention;
  q.config.model.attention_layers.clear();
  return q;
}

// Returns the step of the question's own layout if all kinds share it, otherwise the step of the fastest layout.
std::optional<PlannedStep> fastest(const PlanQuestion& q, bool one_layout) {
  if (one_layout) return plan_step(q);
  const std::vector<PlannedStep> all = plan_layouts(q);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

// Attention's time is proportional to the window; the rest of the step does not depend on it.
std::int64_t window_for(const PlanQuestion& question, bool one_layout) {
  constexpr std::int64_t kTried = 1024;
  const std::int64_t most = question.config.model.context;
  const std::optional<PlannedStep> step = fastest(with(question, window_of(std::min(kTried, most))), one_layout);
  std::int64_t window = std::min(kTried, most);
  if (!step) return window;
  const double each = step->attention_seconds / static_cast<double>(window);
  const double rest = step->seconds() - step->attention_seconds;
  const auto affordable = [&](std::int64_t w) { return each * static_cast<double>(w) <= kShare / (1 - kShare) * rest; };
  while (2 * window < most && affordable(2 * window)) window *= 2;
  while (window > 2 * kBlock && !affordable(window)) window /= 2;
  return window;
}

AttentionAdvice advice_for(const PlanQuestion& question, const std::string& name, const AttentionConfig& attention,
                           bool one_layout) {
  const PlanQuestion q = with(question, attention);
  const ModelConfig& m = q.config.model;
  AttentionAdvice a{
      .name = name, .attention = attention, .yaml = yaml_of(attention, name), .step = fastest(q, one_layout)};
  const double context = static_cast<double>(m.context), pairs = attention_pairs(m);
  a.pairs = pairs / (static_cast<double>(m.layers) * context * (context + 1) / 2);
  a.flops = 12 * static_cast<double>(m.heads * m.head_dim) * pairs * static_cast<double>(q.config.train.batch_size);
  if (a.step) a.share = a.step->attention_seconds / a.step->seconds();
  return a;
}

}  // namespace

std::vector<AttentionAdvice> advise_attention(const PlanQuestion& question, const std::optional<PlannedStep>& layout,
                                              const PlanProgress& progress) {
  PlanQuestion q = question;
  if (layout) q.config = layout->config;
  const AttentionConfig window = window_of(window_for(q, layout.has_value()));
  const std::pair<const char*, AttentionConfig> kinds[] = {
      {"dense", {}},
      {"window", window},
      {"dilated", dilated_to(q.config.model.context)},
      {"hierarchical", hierarchical()},
      {"content", selected(BlockChoice::content, window.window)},
      {"learned", selected(BlockChoice::learned, window.window)},
      {"importance", selected(BlockChoice::importance, window.window)},
      {"pools", with_pools(window)},
  };
  std::vector<AttentionAdvice> all;
  for (const auto& [name, attention] : kinds) {
    if (progress) progress(all.size(), std::size(kinds), nullptr);
    all.push_back(advice_for(q, name, attention, layout.has_value()));
  }
  return all;
}

}  // namespace ring
