#pragma once
// Block selection with pattern: importance. A layer's heads keep the block distances with the
// largest moving average of attention mass (kernels/attention/importance/distance_mass.h).
// All state is on the host, covers all KV heads, and is the same in every process.

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "model/attention/kinds.h"

namespace ring {

// For each KV head and distance: the sum of the masses over query blocks, and the number of blocks in the sum.
struct MeasuredMass {
  std::vector<double> sums, rows;
};

class BlockImportance {
 public:
  // The section must have kind block_sparse, and `pattern` must be the pattern of its rules. Random choices differ by
  // `layer`.
  BlockImportance(const AttentionConfig&, const Pattern&, const ModelSizes&, std::int64_t layer);

  std::int64_t layer() const { return layer_; }
  std::int64_t distances() const { return distances_; }
  // Returns true if the masses of any head are measured before this step. The first step is 1.
  bool measures_before(std::int64_t step) const;
  // Adds the measurement made before the step to the averages.
  void update_averages(std::int64_t step, const MeasuredMass&);
  // Chooses blocks before the step, from the averages so far. Returns true if any head got a new choice.
  bool choose_blocks(std::int64_t step);
  // Returns the pattern of the blocks that are currently kept.
  Pattern pattern() const;
  // Returns for each KV head the number of blocks at the document's start that are always kept.
  std::vector<std::int32_t> num_start_blocks() const;

  void reset();  // clears measurements and choices: the newest blocks are kept, as in a new run

  // State to save and load, f32 [KV heads, distances].
  //   averages  mean attention mass of a block at the distance; below 0 if it was never measured
  //   scores    the distances with the largest scores are kept; among equal scores, the nearer distance
  const Tensor& averages() const { return averages_; }
  const Tensor& scores() const { return scores_; }

 private:
  struct Head {
    std::int32_t local = 0, first = 0, keep = 0, explore = 0;  // keep is 0 if the head follows a different rule
    std::int64_t interval = 0;
    double decay = 0;
    std::uint64_t seed = 0;
    std::int64_t measured_every() const { return interval < kMeasurements ? 1 : interval / kMeasurements; }
  };
  static constexpr std::int64_t kMeasurements = 8;  // measurements between two choices

  float* row(const Tensor& t, std::size_t head) const {
    return t.data<float>() + static_cast<std::int64_t>(head) * distances_;
  }
  void update_head_averages(std::size_t head, const MeasuredMass&);
  void choose_blocks_of_head(std::size_t head, std::int64_t step);
  void draw_bits(std::size_t head, std::uint32_t* bits, std::int64_t words) const;

  std::int64_t layer_, distances_;
  Pattern start_;
  std::vector<Head> heads_;
  Tensor averages_, scores_;
};

// Returns true if a head of the section follows a rule with pattern: importance.
bool uses_importance(const AttentionConfig&, std::int64_t kv_heads);

}  // namespace ring
