#pragma once
// Finds out which layers of a trained model attend to distant tokens: measures the loss when layers use different
// patterns from those they were trained with, and chooses the patterns that cost the least loss at a given density.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "data/loader.h"
#include "model/model.h"

namespace ring {

// Measures the loss over the same batches, with the same weights but different patterns. After each measurement, the
// model uses its own patterns again. Requires that why_not_static_pattern() (model/attention/trained_parts.h) is empty
// for all layers.
class AttentionTrials {
 public:
  AttentionTrials(Model&, const ExecContext&, const ValidationSet&);
  const std::vector<Pattern>& own() const { return own_; }  // by layer

  double loss() { return loss_with(own_); }
  double loss_with(const std::vector<Pattern>& patterns);  // returns the loss with these patterns, one per layer
  // Returns the loss with this pattern in one layer; the other layers keep their own patterns.
  double loss_with(std::size_t layer, const Pattern& pattern);
  // Returns the mean loss of each batch in the last measurement.
  const std::vector<double>& batch_losses() const { return batch_losses_; }

 private:
  void set_patterns(const std::vector<Pattern>& patterns);

  Model& model_;
  const ExecContext& ctx_;
  const ValidationSet& set_;
  std::unique_ptr<Mesh> alone_;
  std::vector<Pattern> own_;
  std::vector<double> batch_losses_;
};

// Returns the standard error of the mean rise from `before` to `after` over the batches; NaN for fewer than two
// batches.
double rise_standard_error(const std::vector<double>& before, const std::vector<double>& after);

// Values by layer and choice; all layers have the same number of choices.
using ByChoice = std::vector<std::vector<double>>;

// Returns the mean density if each layer uses the choice with the lowest density.
double min_density(const ByChoice& densities);

// Returns the choices, by layer, that minimize the sum of the rises with a mean density of at most `max_density`. Exact
// for densities in thousandths, rounded up (dynamic programming). Among equal sums, returns the one with the lowest
// density. Requires max_density >= min_density().
std::vector<std::size_t> choose_attention(const ByChoice& rises, const ByChoice& densities, double max_density);

}  // namespace ring
