#pragma once
// The corpus of sample g, as a pure function of g. After any number n of samples, the number of samples from each
// corpus differs from n times the corpus's weight by less than 1, so that every part of a run, however short, gets the
// mixture. If weights change, this holds from each change on.

#include <cstdint>
#include <vector>

namespace ring {

class Mixture {
 public:
  // weights: >= 0, in any scale; a corpus with weight 0 gets no samples. Weights are rounded to multiples of 1/M: M <=
  // 4096 if such an M represents them exactly (10 for 0.7, 0.2, 0.1), else M = 65536 with at least 1/M for every
  // nonzero weight. Throws Error if a weight is negative or not finite, or if all are 0.
  explicit Mixture(const std::vector<double>& weights);

  struct Location {
    std::uint32_t corpus;
    std::uint64_t index;  // number of earlier samples of the same corpus
  };
  Location operator()(std::uint64_t sample) const;

  // Returns the number of samples from each corpus among the first `num_samples`.
  std::vector<std::uint64_t> sample_counts(std::uint64_t num_samples) const;
  double weight(std::size_t corpus) const;  // weight after rounding
  std::uint64_t period() const { return order_.size(); }

 private:
  std::vector<std::uint64_t> shares_;  // number of samples from each corpus per period
  std::vector<std::uint32_t> order_;   // corpus of each sample in a period
  std::vector<std::uint32_t> rank_;    // number of earlier samples from the same corpus in the period
};

// A sequence of mixtures. When the mixture changes, each corpus continues at its next sample.
class MixtureSchedule {
 public:
  struct Stage {
    std::uint64_t first_sample;
    std::vector<double> weights;
  };
  // stages: sorted by first_sample, starting with 0. If several have the same first_sample, the last one applies.
  // Throws the errors of Mixture.
  explicit MixtureSchedule(const std::vector<Stage>&);
  Mixture::Location operator()(std::uint64_t sample) const;

 private:
  struct Part {
    std::uint64_t first;
    Mixture mixture;
    std::vector<std::uint64_t> before;  // number of samples from each corpus before sample `first`
  };
  std::vector<Part> parts_;
};

}  // namespace ring
