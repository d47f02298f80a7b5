#pragma once
// Finds the cause of a hang from the states of all ranks.

#include <string>
#include <vector>

#include "launcher/rank_state.h"

namespace ring {

// Returns one line that names the cause of a hang. `ranks` must be sorted by rank; ranks of the `world` that are
// missing are listed as not heard of. The first rule that applies decides:
// 1. a rank that is stopped;
// 2. ranks that run different operations with the same number;
// 3. among the ranks that other ranks wait for and that wait for nobody, the rank that has been silent for longest;
// 4. if no rank waits in an operation: a rank that writes a checkpoint and does not wait for another writer, else the
//    rank that has been silent for longest;
// 5. otherwise: ranks wait for each other, or a connection is broken.
std::string verdict(const std::vector<RankState>& ranks, int world);

// Returns e.g. "rank 1 on b (pid 71, node 1)"; without several_nodes, e.g. "rank 1 (pid 71)".
std::string name_of(const RankState&, bool several_nodes);
std::string listed(const std::vector<int>& ranks);  // e.g. "0, 2 and 3"

}  // namespace ring
