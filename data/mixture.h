#pragma once
// Which corpus sample g comes from, as a pure function of g. After any number n of samples, the count of each corpus
// differs from n times its weight by less than 1, so that every stretch of a run, however short, sees the mixture.
// Where weights change, that holds from each change on.

#include <cstdint>
#include <vector>

namespace ring {

class Mixture {
 public:
  // Weights >= 0, any scale; 0: no sample. They are rounded to multiples of 1/M, M <= 4096 when such an M expresses
  // them exactly (as 0.7, 0.2, 0.1 do with 10), else M = 65536; every other corpus keeps at least 1/M. Error: no weight
  // above 0, or one that is no number or below.
  explicit Mixture(const std::vector<double>& weights);

  struct Place {
    std::uint32_t corpus;
    std::uint64_t index;  // how many earlier samples came from the same corpus
  };
  Place operator()(std::uint64_t sample) const;

  std::vector<std::uint64_t> counts(std::uint64_t samples) const;  // of each corpus among the first so many
  double weight(std::size_t corpus) const;                         // after rounding
  std::uint64_t period() const { return order_.size(); }

 private:
  std::vector<std::uint64_t> shares_;  // samples of each corpus per period
  std::vector<std::uint32_t> order_;   // the corpus of each sample of a period
  std::vector<std::uint32_t> rank_;    // how many earlier samples of the period came from the same corpus
};

// Mixtures that follow each other. Each corpus goes on where it was.
class MixtureSchedule {
 public:
  struct Stage {
    std::uint64_t first_sample;
    std::vector<double> weights;
  };
  // By ascending samples, the first from 0 on; of several from one sample on the last holds. Error: as Mixture.
  explicit MixtureSchedule(const std::vector<Stage>&);
  Mixture::Place operator()(std::uint64_t sample) const;

 private:
  struct Part {
    std::uint64_t first;
    Mixture mixture;
    std::vector<std::uint64_t> before;  // samples of each corpus before the first
  };
  std::vector<Part> parts_;
};

}  // namespace ring
