#include "evaluate/source_loss.h"

#include <algorithm>

#include "core/check.h"

namespace ring {

void add_losses(std::vector<SourceLoss>& to, const std::vector<SourceLoss>& more) {
  to.resize(std::max(to.size(), more.size()));
  for (std::size_t i = 0; i < more.size(); ++i) to[i].sum += more[i].sum, to[i].targets += more[i].targets;
}

std::vector<std::pair<std::string, double>> mean_losses(const std::vector<SourceLoss>& sources,
                                                        const std::vector<std::string>& names) {
  RING_CHECK(sources.size() <= names.size(), sources.size(), " losses of corpora, ", names.size(), " names");
  std::vector<std::pair<std::string, double>> means;
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i].targets > 0) means.emplace_back(names[i], sources[i].sum / sources[i].targets);
  return means;
}

}  // namespace ring
