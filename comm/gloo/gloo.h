#pragma once
// Gloo's TCP transport as a HostLink, for ranks on CPUs. Only its pairwise sends and receives are used: one thread, one
// order of operations, a tag of its own for every message.

#include <memory>

#include "comm/communicator.h"
#include "comm/link.h"
#include "comm/queue.h"
#include "job/options.h"
#include "job/store.h"

namespace ring {

bool gloo_available();  // in this build

// Collective: every rank calls it with the same size and a store that all share; `name` separates groups.
// Error: Gloo is not in this build (names the package), or the ranks did not meet in time.
std::unique_ptr<Communicator> make_gloo_communicator(int rank, int size, std::shared_ptr<Store> store,
                                                     const std::string& name, std::shared_ptr<CommQueue> queue,
                                                     const CommOptions& options = {});
// The same, bytes only.
std::unique_ptr<HostLink> make_gloo_link(int rank, int size, Store& store, const std::string& name,
                                         const CommOptions& options);

}  // namespace ring
