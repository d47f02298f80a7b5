#pragma once
// The ways in which the parts of a step may treat their activations, and what each takes.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring {

// One way to treat a part. Peaks are counted from what was in use when the part's forward began.
struct PartOption {
  std::size_t kept = 0;           // from its forward to its backward
  std::size_t forward_peak = 0;   // while its forward runs
  std::size_t backward_peak = 0;  // while its backward runs, with all that it kept or made again
  std::int64_t nanoseconds = 0;   // more than the fastest way takes
  // What is on the host from the end of the next part's forward to the beginning of that part's backward: of what it
  // kept, or what was in use before.
  std::size_t host = 0;
  std::int64_t transfer = 0;               // nanoseconds that these bytes travel, each way
  std::int64_t forward = 0, backward = 0;  // nanoseconds of the part: bytes of the one before travel meanwhile
  std::size_t peak() const { return forward_peak > backward_peak ? forward_peak : backward_peak; }
};
using PartOptions = std::vector<std::vector<PartOption>>;  // in the order of the forward pass

struct ActivationBudget {
  std::size_t device = 0, host = 0;  // bytes
};

// How long a part waits for the bytes of the one before it, both ways: as far as it computes less long than they
// travel.
inline std::int64_t exposed(const PartOption& before, const PartOption& part) {
  const std::int64_t out = before.transfer - part.forward, in = before.transfer - part.backward;
  return (out > 0 ? out : 0) + (in > 0 ? in : 0);
}

}  // namespace ring
