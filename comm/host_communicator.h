#pragma once
// Collectives of tensors in host memory over a HostLink. All of them are direct: each rank talks to every other one, so
// that a lost peer is noticed by all, and a sum adds the ranks' values in rank order whatever the size or the cut.

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
