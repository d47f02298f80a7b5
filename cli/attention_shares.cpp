#include "cli/attention_shares.h"

#include <algorithm>

#include "cli/data_text.h"
#include "core/check.h"
#include "core/checked.h"
#include "core/counted.h"
#include "inspect/referenced_keys.h"
#include "model/patterns.h"
#include "parallel/imbalance.h"
#include "parallel/plan.h"

namespace ring {
namespace {

// Returns the layout of the schedule `ring`, even if the settings choose all_to_all, with which every rank has all keys
// of its heads.
ContextLayout ring_layout(const ModelConfig& m, ParallelConfig c, std::int64_t length) {
  c.cp_schedule = ContextSchedule::ring;
  return context_layout(c, m, length, narrow<int>(c.cp));
}

}  // namespace

std::string sharing_degrees_text(const ParallelConfig& c) {
  std::string text;
  for (const auto& [name, degree] : {std::pair{"cp", c.cp}, {"tp", c.tp}})
    if (degree > 1) text += str(text.empty() ? "" : ", ", "parallel.", name, ": ", degree);
  return text;
}

std::string imbalance_text(const Pattern& pattern, const ModelConfig& m, const ParallelConfig& c, std::int64_t length) {
  const std::int64_t cp = std::max<std::int64_t>(c.cp, 1);
  std::string text;
  const auto add = [&](const char* name, std::int64_t slices, const ContextLayout& rows) {
    if (m.kv_heads % slices) return;
    const double share = largest_over_mean(pairs_by_rank(pattern, m.kv_heads, slices, rows));
    text += str(text.empty() ? "" : ", ", name, " ", format_fixed(share, 3));
  };
  const auto rows = [&](ContextLayoutChoice choice) {
    return choose_layout(choice, patterns_of(m), m.kv_heads, length, narrow<int>(cp));
  };
  if (cp > 1) {
    add("contiguous", c.tp, rows(ContextLayoutChoice::contiguous));
    add("zigzag", c.tp, rows(ContextLayoutChoice::zigzag));
  }
  add(cp > 1 ? "all_to_all" : "heads", cp * c.tp, {ContextLayoutKind::contiguous, length, 1});
  return text;
}

std::string attended_keys_title(const ModelConfig& m, const ParallelConfig& c, std::int64_t length) {
  if (c.cp <= 1) return "";
  return str("Share of other ranks' earlier keys that a rank's queries attend to, with ", sharing_degrees_text(c),
             ", rows ", to_string(ring_layout(m, c, length).kind()), ":");
}

std::string attended_keys_text(const Pattern& kept, const ModelConfig& m, const ParallelConfig& c,
                               std::int64_t length) {
  if (m.kv_heads % c.tp) return "parallel.tp does not divide the KV heads";
  const ReferencedKeys keys = referenced_keys(kept, m.kv_heads, c.tp, ring_layout(m, c, length));
  if (keys.before == 0) return "no rank has earlier keys of other ranks";
  return str(percent(keys.by_head / keys.before), " by one KV head, ", percent(keys.by_any / keys.before),
             " by any of ", counted(m.kv_heads / c.tp, "KV head"));
}

}  // namespace ring
