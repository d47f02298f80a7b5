#include "model/attention/trained_parts.h"

#include "model/attention/pools.h"

namespace ring {

std::span<const TrainedPart> trained_parts() {
  static constexpr TrainedPart kParts[] = {
      {learns_blocks, "an indexer", "select blocks", "pattern: learned", "pattern: content"},
      {learns_pools, "learned pools", "make pools", "pooling: learned", "pooling: mean"},
      {[](const AttentionConfig& c) { return c.pool_gates; }, "pool gates", "weigh pools", "pool_gates: true",
       "pool_gates: false"},
  };
  return kParts;
}

}  // namespace ring
