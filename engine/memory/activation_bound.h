#pragma once
// How fast a plan of activations can still become: memory has prices instead of budgets (Lagrange multipliers), so that
// the parts can be chosen one by one. Below what any plan within the budgets takes, and close to it where the prices
// are right.

#include "engine/memory/activation_options.h"

namespace ring {

class ActivationBound {
 public:
  ActivationBound(const PartOptions&, std::size_t base, ActivationBudget);

  // Nanoseconds of the parts from this one on, at least, for whoever has chosen `before` in the one before and arrives
  // with so much in use and so much on the host. Rounded down.
  double rest(std::size_t part, std::size_t before, std::size_t in_use, std::size_t host) const;

 private:
  struct Excess {
    double device, host;
  };
  const PartOption& option_before(std::size_t part, std::size_t before) const;
  double bytes(std::size_t part, const PartOption& before, const PartOption&) const;
  double cost(std::size_t part, const PartOption& before, const PartOption&, double after) const;
  std::size_t best(std::size_t part, std::size_t before) const;
  std::size_t tightest_part() const;
  Excess set_prices(double device, double host);
  Excess excess() const;
  void choose_prices();

  const PartOptions& parts_;
  const std::size_t base_;
  const ActivationBudget budget_;
  const std::size_t tight_;                   // the part whose peak is held against the budget
  double device_price_ = 0, host_price_ = 0;  // nanoseconds for a byte
  std::vector<std::vector<double>> rest_;     // by part and option of the one before, at these prices
};

}  // namespace ring
