#pragma once
// A communicator whose other ranks do not exist (torch.distributed's backend "fake"). Every operation completes at
// once. all_gather fills `out` with copies of this rank's part; tensors without bytes (core/fake.h) are not touched.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace ring {

// An operation that this rank would run.
struct FakeTransfer {
  std::string group;           // e.g. "cp", "dp x cp"
  std::string_view operation;  // e.g. "all_reduce", "exchange"
  std::size_t bytes = 0;       // bytes of the whole tensor that is reduced, gathered, scattered or sent
  int ranks = 1;
  int nodes = 1;          // nodes on which the group has ranks
  int ranks_on_node = 1;  // the most ranks that the group has on one node
  int ranks_of_node = 1;  // ranks of the whole run on one node, which share the node's link
  // Exchanges only: the larger of the bytes to and from other nodes. Mean over a node's ranks, if all send over the
  // same ring distance.
  double bytes_between_nodes = 0;
};
using TransferObserver = std::function<void(const FakeTransfer&)>;

// Assigns the ranks of a fake group to nodes.
struct FakePlacement {
  std::vector<int> nodes = {};  // the node of each rank of the group; empty: all on one node
  int ranks_of_node = 1;        // ranks of the whole run on one node
};
std::unique_ptr<Communicator> make_fake_communicator(const std::string& group, int rank, int size, TransferObserver,
                                                     const FakePlacement& = {});

}  // namespace ring
