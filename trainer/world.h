#pragma once
// What the loop needs from the other processes of a run.

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/stream.h"

namespace ring {

// Sums a few numbers over all ranks, the same result everywhere. Blocks the host.
std::vector<float> sum_over_ranks(Communicator&, const Stream&, std::vector<float> local);

// Everybody's text in rank order; also a barrier.
std::vector<std::string> gather_text(Communicator&, const Stream&, const std::string& mine);

}  // namespace ring
