#pragma once
// Collectives on tensors in host memory over a HostLink. Every rank talks directly to every other rank, so all ranks
// notice a lost peer, and sums add the values in rank order whatever the size or the segments.

#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "comm/link.h"
#include "comm/queue.h"
#include "job/options.h"

namespace ring {

std::unique_ptr<Communicator> make_host_communicator(std::string_view backend, int rank, int size,
                                                     std::unique_ptr<HostLink> link, std::shared_ptr<CommQueue> queue,
                                                     const CommOptions& options);

}  // namespace ring
