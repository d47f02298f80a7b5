#pragma once
// Checks a run on several nodes when it starts: lists the hosts, and verifies that all of them see the same run
// directory.

#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "engine/config.h"

namespace ring {

// Logs which ranks are on which host, with which GPUs. On several nodes, also writes and removes a test file beside the
// run's directory, or in its nearest existing parent. Throws Error on every rank if not all ranks see the file.
// Collective.
void check_nodes(const std::string& run_directory, int nodes_of_launcher, Mesh&);

// Replaces parallel.islands: 0 by one island per node.
void resolve_islands(ParallelConfig&, std::int64_t nodes);

// Returns the node counts in [min_nodes, max_nodes] that fit the settings if each node has `workers_per_node` workers.
// Returns all of them if the layout is chosen automatically. The settings may have parallel.islands: 0.
std::vector<std::int64_t> fitting_node_counts(const Config&, std::int64_t min_nodes, std::int64_t max_nodes,
                                              int workers_per_node);

}  // namespace ring
