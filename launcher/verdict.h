#pragma once
// Finds the cause of a hang from the states of all ranks.

#include <string>
#include <vector>

#include "launcher/rank_state.h"

namespace ring {

// Returns one line that names the cause of a hang. Requires `ranks` sorted by rank; ranks of the `world` that are not
// among them are listed as not heard of. The first rule that applies decides:
// 1. a rank that is stopped;
// 2. ranks that run different operations under the same number;
// 3. a rank that others wait for and that waits for nobody, the one silent for longest;
// 4. if no rank waits in an operation: a rank that writes a checkpoint and waits for no other writer, else the rank
//    silent for longest;
// 5. otherwise: ranks wait for each other, or a connection is cut.
std::string verdict(const std::vector<RankState>& ranks, int world);

// Returns "rank 1 on b (pid 71, node 1)", or "rank 1 (pid 71)" without several_nodes.
std::string name_of(const RankState&, bool several_nodes);
std::string listed(const std::vector<int>& ranks);  // "0, 2 and 3"

}  // namespace ring
