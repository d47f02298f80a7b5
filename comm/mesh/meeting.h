#pragma once
// The ranks of a job at their store, before they form groups: what they must have alike is compared here.

#include <memory>

#include "comm/agree.h"
#include "job/environment.h"
#include "job/store.h"

namespace ring {

// True if the store dies with its connections only: one that does not answer was stopped, and the ranks go on.
bool launcher_of_this_host_serves(const WorkerEnvironment&);

class Meeting {
 public:
  // Finds the job's store, or hosts it where that is this rank's part; a world of one has none. Error: it was not found
  // within options.connect_timeout, or this rank would be reached at an address that others cannot reach.
  explicit Meeting(const WorkerEnvironment&, const CommOptions& = {});

  // Collective; see comm/agree.h. Waits for the others up to options.connect_timeout.
  void agree(const Topic&, const Facts&);

  const WorkerEnvironment& environment() const { return env_; }
  const CommOptions& options() const { return options_; }  // with the address filled in
  std::shared_ptr<Store> store() const { return store_; }  // null in a world of one
  bool hosts_store() const { return server_ != nullptr; }

 private:
  WorkerEnvironment env_;
  CommOptions options_;
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> store_;
};

}  // namespace ring
