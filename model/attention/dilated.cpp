// Dilated segments (LongNet: Ding et al. 2023).
#include "core/check.h"
#include "core/checked.h"
#include "model/attention/kinds.h"

namespace ring {
namespace {

void validate_branches(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  if (c.segments.empty() || c.segments.size() != c.rates.size()) {
    errors.push_back(str("segments: [", list_text(c.segments), "] and rates: [", list_text(c.rates),
                         "] must have one entry per branch, such as segments: [256, 1024] and rates: [1, 4]"));
    return;
  }
  if (c.rates[0] != 1)
    errors.push_back(str("rates: expected 1 as the first rate, so that every token sees itself, got ", c.rates[0]));
  for (std::size_t i = 0; i < c.rates.size(); ++i)
    if (c.rates[i] > c.segments[i])
      errors.push_back(str("rates: ", c.rates[i], " exceeds its segment of ", c.segments[i],
                           " tokens. Lower the rate or lengthen the segment"));
}

void validate_dedup(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  for (std::size_t i = 0; i < c.rates.size() && i < c.segments.size(); ++i) {
    if (c.segments[i] % c.rates[i])
      errors.push_back(str("dedup: requires rates that divide their segments, but ", c.rates[i], " does not divide ",
                           c.segments[i], ". Change one of them, or set dedup: false"));
    if (i + 1 >= c.rates.size() || i + 1 >= c.segments.size()) continue;
    if (c.segments[i + 1] % c.segments[i] || c.rates[i + 1] % c.rates[i])
      errors.push_back(str("dedup: requires branches that nest, but segment ", c.segments[i], " and rate ", c.rates[i],
                           " do not both divide the next ones, ", c.segments[i + 1], " and ", c.rates[i + 1],
                           ". Change them, or set dedup: false"));
  }
}

void validate_dilated(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  validate_branches(c, errors);
  if (c.dedup) validate_dedup(c, errors);
}

Pattern dilated_pattern(const AttentionConfig& c, const ModelSizes&) {
  Pattern p;
  p.branches.clear();
  for (std::size_t i = 0; i < c.segments.size(); ++i)
    p.branches.push_back({narrow<std::int32_t>(c.segments[i]), narrow<std::int32_t>(c.rates[i])});
  p.dedup = c.dedup;
  p.from_row = true;
  return p;
}

std::string dilated_text(const AttentionConfig& c, std::optional<std::int64_t>) {
  return str("dilated, segments ", list_text(c.segments), ", rates ", list_text(c.rates), c.dedup ? ", dedup" : "");
}

}  // namespace

AttentionKind dilated_attention() {
  return {.name = "dilated",
          .keys = "dilated segments (LongNet)",
          .settings = {{"segments", "segment length of each branch, in tokens; it may exceed the context"},
                       {"rates", "a branch with rate r uses every r-th token of a segment; the first rate must be 1"},
                       {"dedup", "count a pair that several branches keep only once; the branches must nest"}},
          .validate = validate_dilated,
          .pattern = dilated_pattern,
          .text = dilated_text};
}

}  // namespace ring
