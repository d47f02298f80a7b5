#pragma once
// The sharding of a micro-batch over nodes (ContextSchedule::hybrid): adjacent ranks form a node, and a node has the
// rows of all its ranks, in the micro-batch's order.

#include <memory>
#include <vector>

#include "autograd/context_exchange.h"

namespace ring {

struct NodeShards {
  // The rows of this rank's node, sharded among the node's ranks: row numbers count within the node's rows instead of
  // the micro-batch. Has no documents.
  std::shared_ptr<const ContextShards> in_node;
  // All rows of the micro-batch, sharded among the nodes.
  std::shared_ptr<const ContextShards> between_nodes;
};

// per_node: number of ranks on a node; must divide the number of ranks.
NodeShards split_by_node(const ContextShards&, int per_node);

}  // namespace ring
