#pragma once
// Loss by corpus, for runs with a mixture.

#include <string>
#include <utility>
#include <vector>

namespace ring {

// Contribution of one corpus to a loss.
struct SourceLoss {
  double sum = 0, targets = 0;  // sum: in nats, over `targets` tokens
};

// Adds `more` to `to`, corpus by corpus. If `to` is empty, it becomes `more`.
void add_losses(std::vector<SourceLoss>& to, const std::vector<SourceLoss>& more);

// Returns the names and mean losses of the corpora that have targets.
std::vector<std::pair<std::string, double>> mean_losses(const std::vector<SourceLoss>&,
                                                        const std::vector<std::string>& names);

}  // namespace ring
