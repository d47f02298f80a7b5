#include "engine/attention_advice.h"

#include <algorithm>
#include <utility>

#include "engine/layouts.h"
#include "model/attention/section_text.h"
#include "model/attention/suggestions.h"
#include "model/flops.h"

namespace ring {
namespace {

constexpr double kShare = 0.25;  // maximum share of a step's time that attention may take
constexpr std::int64_t kNarrowest = 256;

PlanRequest with(PlanRequest q, const AttentionConfig& attention) {
  q.config.model.attention = attention;
  q.config.model.attention_layers.clear();
  return q;
}

// Returns the step in the layout of `q` if `one_layout`, else in the fastest layout; nullopt if it does not fit.
std::optional<PlannedStep> fastest(const PlanRequest& q, bool one_layout) {
  if (one_layout) return plan_step(q);
  const std::vector<PlannedStep> all = plan_layouts(q);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

// Returns the widest window whose attention takes at most kShare of the step's time, but at least kNarrowest.
// Attention's time is proportional to the window; the time of the rest of the step does not depend on the window.
std::int64_t window_for(const PlanRequest& question, bool one_layout) {
  constexpr std::int64_t kTried = 1024;
  const std::int64_t max = question.config.model.context;
  const std::optional<PlannedStep> step = fastest(with(question, suggested_window(std::min(kTried, max))), one_layout);
  std::int64_t window = std::min(kTried, max);
  if (!step) return window;
  const double each = step->attention_seconds / static_cast<double>(window);
  const double rest = step->seconds() - step->attention_seconds;
  const auto affordable = [&](std::int64_t w) { return each * static_cast<double>(w) <= kShare / (1 - kShare) * rest; };
  while (2 * window < max && affordable(2 * window)) window *= 2;
  while (window > kNarrowest && !affordable(window)) window /= 2;
  return window;
}

AttentionAdvice advice_for(const PlanRequest& question, const SuggestedAttention& suggested, bool one_layout) {
  const PlanRequest q = with(question, suggested.section);
  const ModelConfig& m = q.config.model;
  AttentionAdvice a{.name = suggested.name,
                    .attention = suggested.section,
                    .yaml = section_text(suggested.section),
                    .step = fastest(q, one_layout)};
  const double context = static_cast<double>(m.context), pairs = attention_pairs(m);
  a.pairs = pairs / (static_cast<double>(m.layers) * context * (context + 1) / 2);
  a.flops = 12 * static_cast<double>(m.heads * m.head_dim) * pairs * static_cast<double>(q.config.train.batch_size);
  if (a.step) a.share = a.step->attention_seconds / a.step->seconds();
  return a;
}

}  // namespace

std::vector<AttentionAdvice> advise_attention(const PlanRequest& question, const std::optional<PlannedStep>& layout,
                                              const PlanProgress& progress) {
  PlanRequest q = question;
  if (layout) q.config = layout->config;
  const std::int64_t context = q.config.model.context;
  const std::vector<SuggestedAttention> kinds = suggested_attention(context, window_for(q, layout.has_value()));
  std::vector<AttentionAdvice> all;
  for (const SuggestedAttention& kind : kinds) {
    if (progress) progress(all.size(), kinds.size(), nullptr);
    all.push_back(advice_for(q, kind, layout.has_value()));
  }
  return all;
}

}  // namespace ring
