#pragma once
// The phase in which a job's ranks meet at their store, before they form groups. Facts that must be equal on all ranks
// are compared here.

#include <memory>

#include "comm/agree.h"
#include "job/environment.h"
#include "job/store.h"

namespace ring {

// Returns true if the launcher on this host serves the store. If the launcher dies, the store's connections close. If
// the store does not answer on an open connection, the launcher is only suspended, so the ranks wait for it.
bool is_store_on_this_host(const WorkerEnvironment&);

class Meeting {
 public:
  // Connects to the job's store, or hosts it if that is this rank's task. A world of one has no store. Throws Error if
  // the store is not found within options.connect_timeout, or if other nodes cannot reach this rank's address.
  explicit Meeting(const WorkerEnvironment&, const CommOptions& = {});

  // Collective (comm/agree.h). Waits for the other ranks up to options.connect_timeout.
  void check_agreement(const Topic&, const Facts&);

  const WorkerEnvironment& environment() const { return env_; }
  const CommOptions& options() const { return options_; }  // options with this rank's address filled in
  std::shared_ptr<Store> store() const { return store_; }  // null in a world of one
  bool hosts_store() const { return server_ != nullptr; }

 private:
  WorkerEnvironment env_;
  CommOptions options_;
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> store_;
};

}  // namespace ring
