#pragma once
// Do all ranks run the same operations in the same order? Before an operation each rank tells its peers in it what it
// is about to do, and compares. Costs a round of small messages, so it is for debugging (CommOptions::verify).

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

  // Collective over the operation's ranks, as the operation itself is. The link must not be used meanwhile; tags have
  // their highest bit set. Error names both ranks, both operations and both call sites.
  void run(const Operation& op, HostLink& link, HostLink::Deadline deadline);

 private:
  int rank_;
  CommOptions options_;
  std::vector<std::uint64_t> headers_;  // so far, with each peer
};

}  // namespace ring
