#pragma once
// The ranks of a run under named axes: dp (data), cp (context), tp (tensor); pp (pipeline) is reserved. An axis of
// degree 1 is a communicator that does nothing. tp varies fastest, then cp, then dp: rank = (dp_index * cp + cp_index)
// * tp + tp_index, so that ranks that talk most are neighbours.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/mesh/meeting.h"
#include "comm/queue.h"

namespace ring {

struct MeshDegrees {
  int dp = 1, cp = 1, tp = 1;
};
// All checks of degrees against the world. Axes that are not given: 1, and dp the rest. Error: an axis that does not
// exist or that this version cannot cut, or degrees that do not fit, with those that would.
MeshDegrees mesh_degrees(const std::map<std::string, int>& given, int world);

struct MeshPlan {
  std::map<std::string, int> degrees = {};  // see mesh_degrees()
  Device device = {};                       // of the tensors that axes move: cpu (Gloo) or this rank's GPU (NCCL)
  int emulate_nodes = 0;                    // > 0: pretend that each node has so many ranks
};

class Mesh {
 public:
  // Meets the other ranks (collective, bounded by options.connect_timeout), and from then on watches them: when one
  // dies or stops, every communicator is aborted with a text that names it.
  static std::unique_ptr<Mesh> join(const WorkerEnvironment&, const CommOptions& = {}, const MeshPlan& = {});
  static std::unique_ptr<Mesh> join(Meeting, const MeshPlan& = {});  // of ranks that have met
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const;
  int world() const;
  const Device& device() const;  // of the plan
  int degree(const std::string& name) { return axis(name).size(); }
  int coord(const std::string& name) { return axis(name).rank(); }  // of this rank on that axis

  // Tensors of the plan's device. Groups of the same ranks are one communicator, except that cp never shares its own:
  // what runs beside attention waits for nothing else.
  Communicator& axis(const std::string& name);  // Error names the axes
  Communicator& data();                         // dp x cp of the same tp index, dp-major: gradients are summed over it
  Communicator& all();                          // every rank of the run
  // Every rank, tensors in host memory: counts, flags, hashes. On CPUs the same as all().
  Communicator& host();

  // Throws PeerLost once a group on GPUs was aborted: what the device computed meanwhile means nothing. Operations on
  // CPUs throw by themselves.
  void check();
  // Collective, as in comm/agree.h. Waits for the others up to options.timeout; PeerLost when one of them dies.
  void agree(const Topic&, const Facts&);

  const std::vector<int>& nodes_of_cp_ranks()
      const;       // for each rank of the cp axis, the number of the node that it is on
  Store* store();  // null in a world of one

 private:
  class Impl;
  explicit Mesh(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ring
