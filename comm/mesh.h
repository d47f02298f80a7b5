#pragma once
// The ranks of a run under named axes: dp (data), cp (context), tp (tensor), pp (pipeline). An axis of degree 1 is a
// communicator that does nothing. This version cuts along dp only.

#include <map>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/environment.h"
#include "comm/queue.h"
#include "comm/store.h"

namespace ring {

class Mesh {
 public:
  // Meets the other ranks (collective, bounded by options.connect_timeout). Degrees that are not given: 1, and dp the
  // rest. Error: an unknown axis, degrees whose product is not the world, an axis that this version cannot cut.
  static std::unique_ptr<Mesh> join(const WorkerEnvironment&, const CommOptions& = {},
                                    const std::map<std::string, int>& degrees = {});
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }
  int local_rank() const { return local_rank_; }  // among those of this node
  int degree(const std::string& name) { return axis(name).size(); }
  int coord(const std::string& name) { return axis(name).rank(); }  // of this rank on that axis
  Communicator& axis(const std::string& name);                      // Error names the axes
  Communicator& data() { return axis("dp"); }                       // dp x cp: gradients are summed over it
  Communicator& all() { return axis("dp"); }                        // every rank of the run
  Communicator& host() { return axis("dp"); }                       // every rank, for tensors in host memory
  Store* store() { return store_.get(); }                           // null in a world of one

 private:
  Mesh() = default;

  int rank_ = 0, world_ = 1, local_rank_ = 0;
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<CommQueue> queue_;
  std::map<std::string, std::unique_ptr<Communicator>> axes_;
};

}  // namespace ring
