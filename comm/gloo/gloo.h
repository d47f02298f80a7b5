#pragma once
// Gloo's TCP transport as a HostLink, for ranks on CPUs. Uses only Gloo's pairwise sends and receives, in one thread
// and one order of operations, with a unique tag for every message.

#include <memory>

#include "comm/communicator.h"
#include "comm/link.h"
#include "comm/queue.h"
#include "job/options.h"
#include "job/store.h"

namespace ring {

bool gloo_available();  // true if Gloo is in this build

// Collective: every rank calls it with the same size and a shared store; `name` separates groups. Throws Error if Gloo
// is not in this build (the message names the package), or if the ranks do not meet in time.
std::unique_ptr<Communicator> make_gloo_communicator(int rank, int size, std::shared_ptr<Store> store,
                                                     const std::string& name, std::shared_ptr<CommQueue> queue,
                                                     const CommOptions& options = {});
// Like make_gloo_communicator(), but returns the link for raw bytes.
std::unique_ptr<HostLink> make_gloo_link(int rank, int size, Store& store, const std::string& name,
                                         const CommOptions& options);

}  // namespace ring
