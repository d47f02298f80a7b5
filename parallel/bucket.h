#pragma once
// Buckets: contiguous ranges of the flat gradient buffer, ending on parameter boundaries, that are reduced as one.

#include <cstdint>
#include <vector>

#include "autograd/tape.h"
#include "parallel/gradient_sum.h"

namespace ring {

struct Bucket {
  Tensor grad;                 // contiguous range of the flat buffer
  std::vector<SlotPtr> slots;  // the parameters whose gradients are views of it
  std::int64_t begin = 0;      // in the flat buffer
  // Who gets which sums, counted in the bucket; empty: every rank gets all of them.
  std::vector<BufferPiece> pieces{};
};

// Where a parameter's gradient lies in the flat buffer, in elements.
struct SlotRange {
  SlotPtr slot;
  std::int64_t begin = 0, numel = 0;
};

inline constexpr std::int64_t kBucketBytes = std::int64_t{4} << 20;

// Cuts parameters, given in registration order, into buckets of at most bucket_bytes (a larger parameter is a bucket of
// its own). The buckets come in the order of reduction, which is the reverse of registration: backward completes the
// last parameters first. The first bucket is at most a quarter as large, so that the reduction starts early. Ranges
// ascend without overlap; gaps between parameters are allowed and travel along. Error names the range otherwise.
std::vector<Bucket> make_buckets(const Tensor& flat_grad, const std::vector<SlotRange>& ranges,
                                 std::int64_t bucket_bytes = kBucketBytes);

}  // namespace ring
