#pragma once
// Distances of blocks in buckets, as relative positions are in T5 (Raffel et al. 2020, section 2.1): one by one where
// they are small, then by the logarithm.

#include <climits>

#include "core/host_device.h"

namespace ring {

inline constexpr int kMostDistanceBuckets = 64;

// The bucket of a distance of 1 or more blocks, of `count` buckets: 1 to 7 have one each, and from 8 on each power of
// two is cut in four; the last bucket takes all that is further. It depends on the distance alone, not on how long a
// text is, and more buckets only divide what the last one had.
RING_HOST_DEVICE inline int distance_bucket(int distance, int count) {
  int first = 0;
  for (; distance >= 8; distance /= 2) first += 4;
  const int bucket = first + distance - 1;
  return bucket < count ? bucket : count - 1;
}

// The distances [first, end) of a bucket; of the last one without an end.
struct DistanceRange {
  int first, end;
};
RING_HOST_DEVICE inline DistanceRange distances_of(int bucket, int count) {
  const auto first = [](int b) { return b < 3 ? b + 1 : ((b - 3) % 4 + 4) << (b - 3) / 4; };
  return {first(bucket), bucket + 1 < count ? first(bucket + 1) : INT_MAX};
}

}  // namespace ring
