#pragma once
// Lower bound on the time that any completion of a partial activation plan can reach. Memory has prices instead of
// budgets (Lagrange multipliers), so that each part can be chosen independently. No plan within the budgets is faster
// than the bound, and with the right prices the bound is close.

#include "engine/memory/activation_options.h"

namespace ring {

class ActivationBound {
 public:
  ActivationBound(const PartOptions&, std::size_t base, ActivationBudget);

  // Returns a lower bound on the nanoseconds of parts [part, end), rounded down. before: option of the previous part.
  // in_use, host: bytes in use on the device and on the host when `part` begins.
  double rest_nanoseconds(std::size_t part, std::size_t before, std::size_t in_use, std::size_t host) const;

 private:
  struct Excess {
    double device, host;
  };
  const PartOption& option_before(std::size_t part, std::size_t before) const;
  double bytes(std::size_t part, const PartOption& before, const PartOption&) const;
  double cost(std::size_t part, const PartOption& before, const PartOption&, double after) const;
  std::size_t best_option(std::size_t part, std::size_t before) const;
  std::size_t tightest_part() const;
  Excess set_prices(double device, double host);
  Excess excess() const;
  void choose_prices();

  const PartOptions& parts_;
  const std::size_t base_;
  const ActivationBudget budget_;
  const std::size_t tight_;                   // part whose peak must fit into the budget; other peaks are ignored
  double device_price_ = 0, host_price_ = 0;  // nanoseconds per byte
  std::vector<std::vector<double>> rest_;     // [part][previous part's option]: bound on this and later parts
};

}  // namespace ring
