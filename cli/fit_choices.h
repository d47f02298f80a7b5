#pragma once
// The attention that `attention fit` may give to a layer.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/config.h"

namespace ring {

// One choice of attention, with its pattern and its share of the causal pairs for each layer.
struct FitChoice {
  AttentionConfig section;
  std::vector<Pattern> patterns;
  std::vector<double> densities;
  double density() const;  // mean over the layers
};

// Returns the run's own attention, for which `section` is unset. m: resolved. Throws Error, naming the run, if a layer
// trains parameters for its attention, keeps blocks by importance or shares selections: no fixed pattern can replace
// these.
FitChoice own_choice(const ModelConfig& m, const std::string& run);

// Returns the choices, sorted by density. texts: sections in YAML; if empty, those of default_choices() with a lower
// density than `own`. Throws Error, naming the choice, if one is wrong.
std::vector<FitChoice> fit_choices(const ModelConfig& run, const FitChoice& own, const std::vector<std::string>& texts,
                                   bool learned, std::int64_t step);

// Returns a window and two numbers of selected blocks in YAML, without those that would cover the whole context. Blocks
// are selected with an indexer (`learned`, for a run at this step) or by content.
std::vector<std::string> default_choices(std::int64_t context, bool learned, std::int64_t step);

}  // namespace ring
