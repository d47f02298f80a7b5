#pragma once
// Which blocks a layer keeps whose heads follow a rule with pattern: importance: those distances that attention was
// worth the most at, by a moving average of the mass of blocks (kernels/attention/distance_mass.h). Everything here is
// on the host, of all KV heads, and the same in every process.

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "model/attention/kinds.h"

namespace ring {

// Sums of masses over blocks of queries, and how many these were, by KV head and distance.
struct MeasuredMass {
  std::vector<double> sums, rows;
};

class BlockImportance {
 public:
  // A section of kind block_sparse, and the pattern of its rules; the layer addresses random numbers.
  BlockImportance(const AttentionConfig&, const Pattern&, const ModelSizes&, std::int64_t layer);

  std::int64_t layer() const { return layer_; }
  std::int64_t distances() const { return distances_; }
  // Whether step `step`, the first being 1, is one that masses are measured ahead of: of some head.
  bool measures(std::int64_t step) const;
  // Takes what was measured ahead of the step into the averages.
  void average(std::int64_t step, const MeasuredMass&);
  // Chooses ahead of the step, by the averages so far; true: other blocks are kept from this step on.
  bool choose(std::int64_t step);
  // What is kept now.
  Pattern pattern() const;
  // By KV head, blocks at the start that are kept whatever was measured.
  std::vector<std::int32_t> first() const;

  void forget();  // what was measured and chosen: the newest are kept, as in the beginning

  // f32 [KV heads, distances], to be saved and loaded. Averages: of the mass of a block at this distance; below 0: it
  // was never measured. Scores: by these distances are kept, the largest first, and of equal ones the nearer.
  const Tensor& averages() const { return averages_; }
  const Tensor& scores() const { return scores_; }

 private:
  struct Head {
    std::int32_t local = 0, first = 0, keep = 0, explore = 0;  // keep 0: it follows another rule
    std::int64_t interval = 0;
    double decay = 0;
    std::uint64_t seed = 0;
    std::int64_t measured_every() const { return interval < kMeasurements ? 1 : interval / kMeasurements; }
  };
  static constexpr std::int64_t kMeasurements = 8;  // from one choice to the next

  float* row(const Tensor& t, std::size_t head) const {
    return t.data<float>() + static_cast<std::int64_t>(head) * distances_;
  }
  void average_head(std::size_t head, const MeasuredMass&);
  void choose_head(std::size_t head, std::int64_t step);
  void draw(std::size_t head, std::uint32_t* bits, std::int64_t words) const;

  std::int64_t layer_, distances_;
  Pattern start_;
  std::vector<Head> heads_;
  Tensor averages_, scores_;
};

// Whether a head of the section follows such a rule.
bool keeps_important_blocks(const AttentionConfig&, std::int64_t kv_heads);

}  // namespace ring
