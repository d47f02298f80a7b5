#pragma once
// The attention settings that `attention fit` may give to a layer.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/config.h"

namespace ring {

// A choice of attention, with its pattern and its share of the causal pairs for each layer.
struct FitChoice {
  AttentionConfig section;
  std::vector<Pattern> patterns;
  std::vector<double> densities;
  double density() const;  // returns the mean over the layers
};

// Returns the run's own attention, for which `section` is unset. m: resolved. Throws Error, which names the run, if a
// layer trains parameters for its attention, keeps blocks by importance or shares selections: no fixed pattern can
// replace these.
FitChoice choice_of_run(const ModelConfig& m, const std::string& run);

// Returns the choices, sorted by density. texts: sections in YAML; if empty, the sections of default_choices() with a
// lower density than `own`. Throws Error, which names the choice, if a choice is wrong.
std::vector<FitChoice> fit_choices(const ModelConfig& run, const FitChoice& own, const std::vector<std::string>& texts,
                                   bool learned, std::int64_t warmup_start);

// Returns a window and two choices with different numbers of selected blocks, in YAML, except choices that would cover
// the whole context. If `learned`, an indexer selects the blocks after a warmup that starts at `warmup_start`; else
// they are selected by content.
std::vector<std::string> default_choices(std::int64_t context, bool learned, std::int64_t warmup_start);

}  // namespace ring
