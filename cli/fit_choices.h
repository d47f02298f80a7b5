#pragma once
// The choices of attention that `attention fit` tries.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/config.h"

namespace ring {

// A way to attend. By layer: what it attends over, and the share of causal pairs that this is.
struct FitChoice {
  AttentionConfig section;
  std::vector<Pattern> patterns;
  std::vector<double> densities;
  double density() const;  // the mean
};

// What the run's layers attend over now; `section` means nothing. m: resolved. Error, which names the run: layers that
// learn for their attention, keep blocks by importance or share selections, in whose place no pattern can stand.
FitChoice own_choice(const ModelConfig& m, const std::string& run);

// Sections in YAML, cheapest first. None: those of default_choices() that fit, of less density than `own`. Error names
// the choice.
std::vector<FitChoice> fit_choices(const ModelConfig& run, const FitChoice& own, const std::vector<std::string>& texts,
                                   bool learned, std::int64_t step);

// A window, and two sizes of selected blocks, with an indexer (`learned`, for a run in this step) or by content, in
// YAML; those for which so many tokens are enough.
std::vector<std::string> default_choices(std::int64_t context, bool learned, std::int64_t step);

}  // namespace ring
