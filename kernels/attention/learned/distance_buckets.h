#pragma once
// Buckets of block distances, like T5's relative positions (Raffel et al. 2020, section 2.1): one bucket per distance
// for small distances, logarithmic buckets beyond.

#include <climits>

#include "core/host_device.h"

namespace ring {

inline constexpr int kMaxDistanceBuckets = 64;

// Returns the bucket, in [0, count), of a distance of at least 1 block. Distances 1 to 7 have one bucket each; from 8
// on, each octave [2^n, 2^(n+1)) has four buckets. The last bucket has all larger distances, so a larger `count` only
// divides the last bucket. The bucket does not depend on the length of the document.
RING_HOST_DEVICE inline int distance_bucket(int distance, int count) {
  int first = 0;
  for (; distance >= 8; distance /= 2) first += 4;
  const int bucket = first + distance - 1;
  return bucket < count ? bucket : count - 1;
}

// The distances [first, end) in a bucket. For the last bucket, end is INT_MAX.
struct DistanceRange {
  int first, end;
};
RING_HOST_DEVICE inline DistanceRange distances_of(int bucket, int count) {
  const auto first = [](int b) { return b < 3 ? b + 1 : ((b - 3) % 4 + 4) << (b - 3) / 4; };
  return {first(bucket), bucket + 1 < count ? first(bucket + 1) : INT_MAX};
}

}  // namespace ring
