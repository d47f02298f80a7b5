#include "cli/attention_shares.h"

#include <algorithm>

#include "cli/data_text.h"
#include "core/check.h"
#include "core/checked.h"
#include "model/patterns.h"
#include "parallel/imbalance.h"

namespace ring {

std::string sharing_degrees(const ParallelConfig& c) {
  std::string text;
  for (const auto& [name, degree] : {std::pair{"cp", c.cp}, {"tp", c.tp}})
    if (degree > 1) text += str(text.empty() ? "" : ", ", "parallel.", name, ": ", degree);
  return text;
}

std::string shares_text(const Pattern& pattern, const ModelConfig& m, const ParallelConfig& c, std::int64_t length) {
  const std::int64_t cp = std::max<std::int64_t>(c.cp, 1);
  std::string text;
  const auto add = [&](const char* name, std::int64_t slices, const ContextLayout& rows) {
    if (m.kv_heads % slices) return;
    const double share = largest_over_mean(pairs_by_rank(pattern, m.kv_heads, slices, rows));
    text += str(text.empty() ? "" : ", ", name, " ", fixed(share, 3));
  };
  const auto rows = [&](ContextLayoutChoice choice) {
    return choose_layout(choice, patterns_of(m), length, narrow<int>(cp));
  };
  if (cp > 1) {
    add("contiguous", c.tp, rows(ContextLayoutChoice::contiguous));
    add("zigzag", c.tp, rows(ContextLayoutChoice::zigzag));
  }
  add(cp > 1 ? "all_to_all" : "heads", cp * c.tp, {ContextLayoutKind::contiguous, length, 1});
  return text;
}

}  // namespace ring
