#pragma once
// Which corpus sample g comes from, as a pure function of g. After any number n of samples, the count of each corpus
// differs from n times its weight by less than 1, so that every stretch of a run, however short, sees the mixture.

#include <cstdint>
#include <vector>

namespace ring {

class Mixture {
 public:
  // Weights > 0, any scale. They are rounded to multiples of 1/M, M <= 4096 when such an M expresses them exactly (as
  // 0.7, 0.2, 0.1 do with 10), else M = 65536; every corpus keeps at least 1/M. Error: none, or one that is not
  // positive.
  explicit Mixture(const std::vector<double>& weights);

  struct Place {
    std::uint32_t corpus;
    std::uint64_t index;  // how many earlier samples came from the same corpus
  };
  Place operator()(std::uint64_t sample) const;

  double weight(std::size_t corpus) const;  // after rounding
  std::uint64_t period() const { return order_.size(); }

 private:
  std::vector<std::uint64_t> shares_;  // samples of each corpus per period
  std::vector<std::uint32_t> order_;   // the corpus of each sample of a period
  std::vector<std::uint32_t> rank_;    // how many earlier samples of the period came from the same corpus
};

}  // namespace ring
