#pragma once
// Loss by corpus, where a run has a mixture.

#include <string>
#include <utility>
#include <vector>

namespace ring {

// What a corpus has of a loss.
struct SourceLoss {
  double sum = 0, targets = 0;  // in nats, over so many tokens
};

// Adds to each what the other has; to an empty list anything.
void add_losses(std::vector<SourceLoss>& to, const std::vector<SourceLoss>& more);

// Mean losses by name, of the corpora that have targets.
std::vector<std::pair<std::string, double>> mean_losses(const std::vector<SourceLoss>&,
                                                        const std::vector<std::string>& names);

}  // namespace ring
