#pragma once
// The ranks of a run under named axes (dp, cp, ..), each axis and each declared union of axes with its communicator. A
// group of one rank is a communicator that does nothing.

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
  std::vector<MeshAxis> axes = {};     // the first varies slowest; their degrees multiply to the world
  std::vector<AxisNames> unions = {};  // groups beside those of single axes
  Device device = {};                  // of the tensors that groups move: cpu (Gloo) or this rank's GPU (NCCL)
  int emulate_nodes = 0;               // > 0: pretend that each node has so many ranks
};

class Mesh {
 public:
  // Meets the other ranks (collective, bounded by options.connect_timeout), and from then on watches them: when one
  // dies or stops, every communicator is aborted with a text that names it.
  static std::unique_ptr<Mesh> join(const WorkerEnvironment&, const CommOptions&, const MeshLayout&);
  static std::unique_ptr<Mesh> join(Meeting, const MeshLayout&);  // of ranks that have met
  // As one of so many ranks sees it, alone: see comm/fake.h.
  static std::unique_ptr<Mesh> fake(const MeshLayout&, int rank, const TransferObserver& = {});
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const;
  int world() const;
  const Device& device() const;               // of the layout
  int degree(const std::string& axis) const;  // Error names the axes
  int coord(const std::string& axis) const;   // of this rank

  // The ranks that differ from this one along these axes only, ascending: an axis, or a union that the layout declares.
  // Tensors are on the layout's device. Groups of the same ranks are one communicator, except those beside kernels.
  Communicator& group(const AxisNames&);
  Communicator& axis(const std::string& name) { return group({name}); }
  Communicator& all();  // every rank of the run
  // Every rank, tensors in host memory: counts, flags, hashes. On CPUs the same as all().
  Communicator& host();
  // As host(), with an order of its own: for a thread that talks to those of the other ranks while steps go on.
  // Collective when it is first asked for.
  Communicator& background();

  // Throws PeerLost once a group on GPUs was aborted: what the device computed meanwhile means nothing. Operations on
  // CPUs throw by themselves.
  void check();
  // Collective, as in comm/agree.h. Waits for the others up to options.timeout; PeerLost when one of them dies.
  void agree(const Topic&, const Facts&);

  std::vector<int> nodes_along(const std::string& axis) const;  // for each rank of that group, the number of its node
  Store* store();                                               // null in a world of one

 private:
  class Impl;
  explicit Mesh(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ring
