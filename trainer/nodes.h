#pragma once
// What a run on several nodes settles first: who is where, and that all see one run directory.

#include <string>

#include "comm/mesh/mesh.h"
#include "engine/config.h"

namespace ring {

// Collective. Says which ranks are on which host, with which GPUs. On several nodes it also writes and removes a file
// beside the run's directory, or in the nearest folder above that is there. Error on every rank: not all ranks see it.
void check_nodes(const std::string& run_directory, int nodes_of_launcher, Mesh&);

// Where a job may go on with `least` to `most` nodes, all of so many workers, and the settings do not fit each number
// of them: which they fit. Empty: nothing has to be said.
std::string nodes_that_fit(const Config&, std::int64_t least, std::int64_t most, int workers);

}  // namespace ring
