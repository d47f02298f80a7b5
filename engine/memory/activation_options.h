#pragma once
// The options for the activations of each part of a step, and the memory and time of each option.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring {

// One way to treat a part's activations. Peaks are relative to the bytes in use when the part's forward begins.
struct PartOption {
  std::size_t kept = 0;           // bytes that the part's forward saves for its backward
  std::size_t forward_peak = 0;   // bytes while the part's forward runs
  std::size_t backward_peak = 0;  // bytes while the part's backward runs, including saved and recomputed activations
  std::int64_t nanoseconds = 0;   // extra time compared with the fastest option
  // Bytes that are on the host from the end of the next part's forward to the beginning of the next part's backward.
  // They are included in `kept`, or were in use before this part.
  std::size_t host = 0;
  std::int64_t transfer = 0;               // nanoseconds to transfer `host` in one direction
  std::int64_t forward = 0, backward = 0;  // nanoseconds of the part; they hide the previous part's transfers
  std::size_t peak() const { return forward_peak > backward_peak ? forward_peak : backward_peak; }
};
inline constexpr PartOption kNoPart;  // stands before the first part

using PartOptions = std::vector<std::vector<PartOption>>;  // in the order of the forward pass

struct ActivationBudget {
  std::size_t device = 0, host = 0;  // bytes
};

// Returns how long `part` waits for the previous part's transfers in both directions: the transfer time that the
// computation of `part` does not hide.
inline std::int64_t exposed(const PartOption& before, const PartOption& part) {
  const std::int64_t out = before.transfer - part.forward, in = before.transfer - part.backward;
  return (out > 0 ? out : 0) + (in > 0 ? in : 0);
}

}  // namespace ring
