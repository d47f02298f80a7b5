#include "parallel/bucket.h"

#include <algorithm>

namespace ring {
namespace {

void check_ranges(const Tensor& flat, const std::vector<SlotRange>& ranges) {
  RING_CHECK(flat.defined() && flat.is_contiguous(), "make_buckets: the flat gradient must be contiguous");
  std::int64_t end = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const SlotRange& r = ranges[i];
    RING_CHECK(r.begin >= end && r.numel > 0 && r.begin + r.numel <= flat.numel(), "make_buckets: parameter ", i,
               " covers [", r.begin, ",", r.begin + r.numel, "), after [..,", end, ") in a buffer of ", flat.numel());
    end = r.begin + r.numel;
    RING_CHECK(r.slot && r.slot->bound, "make_buckets: the slot of parameter ", i, " is not bound to the flat buffer");
    const std::byte* expected = flat.raw() + r.begin * static_cast<std::int64_t>(size_of(flat.dtype()));
    RING_CHECK(r.slot->grad.raw() == expected && r.slot->grad.numel() == r.numel,
               "make_buckets: the gradient of parameter ", i, " is ", describe(r.slot->grad), ", not elements [",
               r.begin, ",", end, ") of the flat buffer");
  }
}

}  // namespace

std::vector<Bucket> make_buckets(const Tensor& flat_grad, const std::vector<SlotRange>& ranges,
                                 std::int64_t bucket_bytes) {
  RING_CHECK(bucket_bytes > 0, "make_buckets: bucket_bytes is ", bucket_bytes);
  check_ranges(flat_grad, ranges);
  const Tensor flat = flat_grad.view({flat_grad.numel()});
  const auto element = static_cast<std::int64_t>(size_of(flat.dtype()));
  std::vector<Bucket> buckets;
  for (std::size_t last = ranges.size(); last > 0;) {  // ranges [first, last) form one bucket
    const std::int64_t limit = buckets.empty() ? std::max<std::int64_t>(bucket_bytes / 4, 1) : bucket_bytes;
    const std::int64_t end = ranges[last - 1].begin + ranges[last - 1].numel;
    std::size_t first = last - 1;
    while (first > 0 && (end - ranges[first - 1].begin) * element <= limit) --first;
    Bucket bucket;
    bucket.begin = ranges[first].begin;
    bucket.grad = flat.narrow(0, ranges[first].begin, end - ranges[first].begin);
    for (std::size_t i = last; i-- > first;) bucket.slots.push_back(ranges[i].slot);
    buckets.push_back(std::move(bucket));
    last = first;
  }
  return buckets;
}

}  // namespace ring
