#pragma once
// Which layers of a trained model look far: the loss with layers that attend in other ways than they were trained to,
// and the ways that cost the least loss at a density.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "data/loader.h"
#include "model/model.h"

namespace ring {

// Why a layer of this section has more than a pattern, as what is said of it: "has an indexer (pattern: learned)";
// empty: a pattern is all.
std::string more_than_a_pattern(const AttentionConfig&, std::int64_t kv_heads);

// The loss over the same batches, with other patterns and the same weights. After each call the model attends as its
// settings say. A layer with more_than_a_pattern is a broken contract.
class AttentionTrials {
 public:
  AttentionTrials(Model&, const ExecContext&, const ValidationSet&);
  const std::vector<Pattern>& own() const { return own_; }  // by layer

  double loss() { return loss_with(own_); }
  double loss_with(const std::vector<Pattern>&);                // of all layers
  double loss_with(std::size_t layer, const Pattern& pattern);  // of this one; the others keep theirs
  // The mean loss of each batch in the last of these calls.
  const std::vector<double>& batch_losses() const { return batch_losses_; }

 private:
  void attend(const std::vector<Pattern>&);

  Model& model_;
  const ExecContext& ctx_;
  const ValidationSet& set_;
  std::unique_ptr<Mesh> alone_;
  std::vector<Pattern> own_;
  std::vector<double> batch_losses_;
};

// Returns the standard error of the mean rise from `before` to `after`, batch by batch; NaN for fewer than two batches.
double error_of_rise(const std::vector<double>& before, const std::vector<double>& after);

// Numbers by layer and choice; all layers have as many.
using ByChoice = std::vector<std::vector<double>>;

// The mean over the layers where each takes the choice of least density.
double least_density(const ByChoice& densities);

// The choice of each layer with which the rises add up to the least and the mean density is at most `most`: exact,
// by dynamic programming, for densities in thousandths, rounded up. Of equal sums one of the least density. Broken
// contract: `most` is below least_density().
std::vector<std::size_t> choose_attention(const ByChoice& rises, const ByChoice& densities, double most);

}  // namespace ring
