#pragma once
// The options for the activations of each part of a step, and what each option takes.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring {

// One way to treat the activations of a part. Peaks are relative to the bytes in use when the part's forward begins.
struct PartOption {
  std::size_t kept = 0;           // bytes saved by its forward for its backward
  std::size_t forward_peak = 0;   // bytes while its forward runs
  std::size_t backward_peak = 0;  // bytes while its backward runs, including saved and recomputed activations
  std::int64_t nanoseconds = 0;   // time beyond that of the fastest option
  // Bytes on the host from the end of the next part's forward to the beginning of the next part's backward: a part of
  // `kept`, or of what was in use before.
  std::size_t host = 0;
  std::int64_t transfer = 0;               // nanoseconds to transfer `host`, each way
  std::int64_t forward = 0, backward = 0;  // nanoseconds of the part; they hide the transfers of the part before
  std::size_t peak() const { return forward_peak > backward_peak ? forward_peak : backward_peak; }
};
using PartOptions = std::vector<std::vector<PartOption>>;  // in the order of the forward pass

struct ActivationBudget {
  std::size_t device = 0, host = 0;  // bytes
};

// Returns how long `part` waits for the transfers of the part before it, both ways: the transfer time that its
// computation does not hide.
inline std::int64_t exposed(const PartOption& before, const PartOption& part) {
  const std::int64_t out = before.transfer - part.forward, in = before.transfer - part.backward;
  return (out > 0 ? out : 0) + (in > 0 ? in : 0);
}

}  // namespace ring
