#pragma once
// Checks that all ranks run the same operations in the same order: before an operation, each rank sends a description
// of it to its peers and compares. It costs a round of small messages, so it is for debugging (CommOptions::verify).

#include <cstdint>
#include <vector>

#include "comm/link.h"
#include "comm/operation.h"
#include "job/options.h"

namespace ring {

class CallCheck {
 public:
  CallCheck(int rank, int size, const CommOptions& options)
      : rank_(rank), options_(options), headers_(static_cast<std::size_t>(size)) {}

  // Collective over the operation's ranks. The link must not be used meanwhile. Uses tags with the highest bit set. If
  // operations differ, throws Error with both ranks, both operations and both call sites.
  void run(const Operation& op, HostLink& link, HostLink::Deadline deadline);

 private:
  int rank_;
  CommOptions options_;
  std::vector<std::uint64_t> headers_;  // number of headers exchanged so far with each peer
};

}  // namespace ring
