#include "parallel/replicated.h"

namespace ring {
namespace {

// Of the parameters for which `take` holds, with the gaps between neighbours.
template <class Take>
std::vector<FlatRange> ranges_of(const Parameters& params, const Take& take) {
  std::vector<FlatRange> ranges;
  bool joined = false;  // the parameter before was taken
  for (const Param* p : params.layout()) {
    const bool taken = take(*p);
    const std::int64_t end = p->offset + p->shape.numel();
    if (taken && joined)
      ranges.back().end = end;
    else if (taken)
      ranges.push_back({p->offset, end});
    joined = taken;
  }
  return ranges;
}

}  // namespace

std::vector<FlatRange> replicated_ranges(const Parameters& params) {
  if (params.slice().size == 1) return {};
  return ranges_of(params, [&](const Param& p) { return !params.is_cut(p); });
}

std::vector<FlatRange> counted_ranges(const Parameters& params) {
  if (params.slice().size == 1) return {{0, params.size()}};
  return ranges_of(params, [&](const Param& p) { return params.slice().rank == 0 || params.is_cut(p); });
}

void sum_replicated(const Parameters& params, Communicator& tp, const Stream& stream) {
  std::vector<Work> works;
  for (const FlatRange& r : replicated_ranges(params))
    works.push_back(tp.all_reduce(params.gradients.narrow(0, r.begin, r.end - r.begin), Reduce::sum, stream.record()));
  for (Work& work : works) work.wait(stream);
}

}  // namespace ring
