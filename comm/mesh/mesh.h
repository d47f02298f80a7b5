#pragma once
// The ranks of a run under named axes (dp, cp, ..). Each axis and each declared union of axes has a communicator. The
// communicator of a single rank does nothing.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/fake.h"
#include "comm/mesh/axes.h"
#include "comm/mesh/meeting.h"
#include "comm/queue.h"
#include "job/environment.h"

namespace ring {

struct MeshLayout {
  std::vector<MeshAxis> axes = {};     // the first varies slowest; the product of degrees is the world size
  std::vector<AxisNames> unions = {};  // additional groups along several axes
  Device device = {};                  // device of the groups' tensors: cpu (Gloo) or this rank's GPU (NCCL)
  int emulate_nodes = 0;               // if > 0, pretends that each node has this many ranks
};

class Mesh {
 public:
  // Collective. Meets the other ranks, within options.connect_timeout, and then watches them: when a rank dies or
  // hangs, every communicator is aborted with a message that names it.
  static std::unique_ptr<Mesh> join(const WorkerEnvironment&, const CommOptions&, const MeshLayout&);
  static std::unique_ptr<Mesh> join(Meeting, const MeshLayout&);  // joins ranks that have already met
  // Returns the mesh as one of its ranks sees it, without the other ranks (comm/fake.h).
  static std::unique_ptr<Mesh> fake(const MeshLayout&, int rank, const TransferObserver& = {});
  // Replaces the axes and their groups, for a layout that was chosen after the ranks had met. References to the groups
  // of axes become invalid, but all() and host() stay. The new layout must have the same device and size. Collective.
  void set_layout(const MeshLayout&);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const;
  int world() const;
  const Device& device() const;               // the layout's device
  int degree(const std::string& axis) const;  // throws Error with the known axes
  int coord(const std::string& axis) const;   // this rank's position along the axis

  // Returns the communicator of the ranks that differ from this rank only along these axes, in ascending order: one
  // axis, or a union declared in the layout. Tensors are on the layout's device. Groups with the same ranks and the
  // same AxisTransfers share a communicator.
  Communicator& group(const AxisNames&);
  Communicator& axis(const std::string& name) { return group({name}); }
  // The ranks of a group by node. node: the ranks on this rank's node. between_nodes: one rank of each node, with this
  // rank's index within the node.
  struct NodeGroups {
    Communicator &node, &between_nodes;
  };
  // Treats every `per_node` adjacent ranks of this rank's group along the axes as one node. Throws Error if per_node
  // does not divide the size of the group. The first call for each pair of axes and per_node is collective.
  NodeGroups groups_by_node(const AxisNames&, int per_node);
  NodeGroups groups_by_node(const std::string& axis, int per_node) { return groups_by_node(AxisNames{axis}, per_node); }
  Communicator& all();  // communicator of all ranks of the run
  // Communicator of all ranks with tensors in host memory: counts, flags, hashes. On CPUs the same as all().
  Communicator& host();
  // Like host(), but with its own operation order, for a background thread that talks to its counterparts on other
  // ranks during steps. The first call is collective.
  Communicator& background();
  // Like group(), but for any axes, and with tensors in host memory. The first call for a set of axes is collective
  // over the group.
  Communicator& host_group(const AxisNames&);
  // Like host_group(), but with its own operation order, for messages that are in flight during steps. An operation
  // may wait for slow ranks for hours, but fails at once if a rank is lost. The first call for a set of axes is
  // collective over the group.
  Communicator& background_group(const AxisNames&);

  // Throws PeerLost if a group on GPUs was aborted: results computed since then are garbage. Operations on CPUs throw
  // by themselves.
  void check();
  // Collective (comm/agree.h). Waits for the other ranks up to options.timeout. Throws PeerLost if one of them dies.
  void check_agreement(const Topic&, const Facts&);

  // Aborts all groups, so that the work queued on the device ends, with undefined results. Callable from any thread.
  void abort(const std::string& reason);
  // Returns true if no operation of any group uses device memory any more.
  bool idle() const;
  // Returns a flag in page-locked host memory that is 0 until a group on GPUs is aborted; null without such groups. It
  // becomes 1 after check() begins to throw and before this rank ends queued operations early. A kernel that runs after
  // an operation and reads 0 therefore has the operation's true result, unless another rank has aborted it: groups are
  // aborted some time after the flag is set, so that the other ranks notice the loss before.
  const std::uint32_t* abort_flag() const;

  std::vector<int> nodes_along(const AxisNames&) const;  // node index of each rank in the group along the axes
  std::vector<int> nodes_along(const std::string& axis) const { return nodes_along(AxisNames{axis}); }
  Store* store();  // null in a world of one

 private:
  class Impl;
  explicit Mesh(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ring
