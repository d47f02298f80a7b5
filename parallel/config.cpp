#include "parallel/config.h"

#include "core/fields.h"

namespace ring {

void ParallelConfig::fields(Fields& f) {
  f("dp", dp, "replicas that each take a share of the sequences; 0 = as many as the processes make", at_least(0));
  f("cp", cp, "processes among which each sequence is cut (context parallelism)", at_least(1));
  f("tp", tp, "processes among which each layer's matrices are cut (tensor parallelism)", at_least(1));
  f("pp", pp, "pipeline stages; only 1 for now", in_range(1, 1));
}

std::map<std::string, int> ParallelConfig::degrees() const {
  std::map<std::string, int> d{
      {"cp", static_cast<int>(cp)}, {"tp", static_cast<int>(tp)}, {"pp", static_cast<int>(pp)}};
  if (dp) d["dp"] = static_cast<int>(dp);
  return d;
}

}  // namespace ring
