#pragma once
// Measures the links that a job sees: messages between the ranks of a node, and between nodes.

#include <optional>
#include <string>

#include "bench/message_rates.h"
#include "comm/mesh/mesh.h"
#include "engine/memory/cost_model.h"
#include "job/environment.h"

namespace ring {

// Times of messages in groups of ranks. Rates are per rank. All groups send at once, except for `pair`.
struct LinkTimes {
  MessageTime pair;        // two ranks send to each other, and all others are idle
  MessageTime exchange;    // every rank sends to the next rank of its group
  MessageTime collective;  // mean of all-gather and reduce-scatter
  MessageTime all_reduce;
};

struct Links {
  int nodes = 1, ranks_per_node = 1;
  std::optional<LinkTimes> inside;   // groups of the ranks of a node; nullopt if a node has one rank
  std::optional<LinkTimes> between;  // groups of the ranks with the same number on each node; nullopt with one node
};

// Returns the mesh to measure: the axes "nodes" and "ranks". Throws Error if the nodes have different numbers of ranks.
MeshLayout layout_of_links(const WorkerEnvironment&, Device);
// Requires a mesh with the axes of layout_of_links(). seconds: duration of one round; each kind and size of message
// takes several rounds. Collective.
Links measure_links(const ExecContext&, Mesh& mesh, double seconds = kMessageSeconds);

// Writes the measured links to `rates` and leaves the other rates.
void set_links(const Links&, DeviceRates& rates);
// Returns a table with a latency and a rate for each kind of message; between nodes, the rate of all ranks of a node.
std::string links_table(const Links&);

}  // namespace ring
