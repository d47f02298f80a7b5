#include "parallel/replicated.h"

namespace ring {

void sum_replicated(const Holding& holding, Communicator& tp, const Stream& stream) {
  if (tp.size() == 1) return;
  std::vector<Work> works;
  for (const HeldRun& run : holding.runs())
    if (!run.cut) works.push_back(tp.all_reduce(run.of(holding.gradients), Reduce::sum, stream.record()));
  for (Work& work : works) work.wait(stream);
}

}  // namespace ring
