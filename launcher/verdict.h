#pragma once
// Whose fault a hang is, in one line, from where all ranks are.

#include <string>
#include <vector>

#include "launcher/rank_state.h"

namespace ring {

// The ranks may be some of the `world` only: those that nobody heard of are named. They are in the order of ranks.
// A rank that was stopped is the cause; else one that runs another operation than the others under the same number;
// else one that the others wait for and that waits for nobody; where nobody waits in an operation, one that writes a
// checkpoint and waits for no other writer, or the one that is silent for longest; else the line says that all wait for
// each other.
std::string verdict(const std::vector<RankState>& ranks, int world);

// "rank 1 on b (node 1, pid 71)"; without host and node where there is one node.
std::string name_of(const RankState&, bool several_nodes);
std::string listed(const std::vector<int>& ranks);  // "0, 2 and 3"

}  // namespace ring
