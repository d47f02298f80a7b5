#pragma once
// Buckets: contiguous ranges of the flat gradient buffer, ending on parameter boundaries, that are reduced together.

#include <cstdint>
#include <vector>

#include "autograd/tape.h"
#include "parallel/gradient_sum.h"

namespace ring {

struct Bucket {
  Tensor grad;                 // contiguous range of the flat buffer
  std::vector<SlotPtr> slots;  // slots of the parameters whose gradients are views of `grad`
  std::int64_t begin = 0;      // first element in the flat buffer
  // Owners of the sums, with offsets in the bucket. If empty, every rank gets all sums.
  std::vector<BufferPiece> pieces{};
};

// A parameter's gradient in the flat buffer, in elements.
struct SlotRange {
  SlotPtr slot;
  std::int64_t begin = 0, numel = 0;
};

inline constexpr std::int64_t kBucketBytes = std::int64_t{4} << 20;

// Splits parameters, given in registration order, into buckets of at most bucket_bytes; a larger parameter gets its own
// bucket. Returns the buckets in reduction order, the reverse of registration order, since backward completes the last
// parameters first. The first bucket is at most a quarter of the size, so that reduction starts early. Ranges must be
// sorted and must not overlap; gaps between parameters are allowed and are reduced, too. Throws Error naming the
// offending range otherwise.
std::vector<Bucket> make_buckets(const Tensor& flat_grad, const std::vector<SlotRange>& ranges,
                                 std::int64_t bucket_bytes = kBucketBytes);

}  // namespace ring
