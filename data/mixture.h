#pragma once
// The corpus of sample g, as a pure function of g. After any number n of samples, the count of each corpus differs from
// n times its weight by less than 1, so that every part of a run, however short, sees the mixture. If weights change,
// this holds from each change on.

#include <cstdint>
#include <vector>

namespace ring {

class Mixture {
 public:
  // weights: >= 0, any scale; a weight of 0 gives no samples. Rounds them to multiples of 1/M: M <= 4096 if such an M
  // expresses them exactly (10 for 0.7, 0.2, 0.1), otherwise M = 65536 with at least 1/M for every nonzero weight.
  // Throws Error if a weight is negative or not finite, or if all are 0.
  explicit Mixture(const std::vector<double>& weights);

  struct Location {
    std::uint32_t corpus;
    std::uint64_t index;  // number of earlier samples of the same corpus
  };
  Location operator()(std::uint64_t sample) const;

  std::vector<std::uint64_t> counts(std::uint64_t samples) const;  // samples of each corpus among the first `samples`
  double weight(std::size_t corpus) const;                         // weight after rounding
  std::uint64_t period() const { return order_.size(); }

 private:
  std::vector<std::uint64_t> shares_;  // samples of each corpus per period
  std::vector<std::uint32_t> order_;   // corpus of each sample of a period
  std::vector<std::uint32_t> rank_;    // number of earlier samples of the period from the same corpus
};

// A sequence of mixtures. Each corpus continues at its next sample when the mixture changes.
class MixtureSchedule {
 public:
  struct Stage {
    std::uint64_t first_sample;
    std::vector<double> weights;
  };
  // stages: ascending by first_sample, the first at 0; of several with the same first_sample the last applies. Throws
  // the errors of Mixture.
  explicit MixtureSchedule(const std::vector<Stage>&);
  Mixture::Location operator()(std::uint64_t sample) const;

 private:
  struct Part {
    std::uint64_t first;
    Mixture mixture;
    std::vector<std::uint64_t> before;  // samples of each corpus before sample `first`
  };
  std::vector<Part> parts_;
};

}  // namespace ring
