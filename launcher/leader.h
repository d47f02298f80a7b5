#pragma once
// What the agent of node 0 does for all: it serves the store at which agents meet, hears them, lets Rendezvous decide,
// and hosts a fresh store for the workers of each attempt.

#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include "job/store.h"
#include "launcher/job.h"
#include "launcher/rendezvous.h"

namespace ring {

class Leader {
 public:
  // Error: the endpoint cannot be served. Port 0: an ephemeral one. any: listen at every address of this host.
  Leader(Job, RendezvousRules, const Endpoint&, bool any, std::chrono::milliseconds silence);
  // Waits a few seconds until all agents know that the job is over.
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  Endpoint own_endpoint() const;  // for the agent of this host

 private:
  void run();
  void hear();
  void take(const std::string& report);
  void look_for_lost();
  void publish();
  void open_store(int attempt);
  bool everybody_left() const;
  std::unique_ptr<StoreServer> serve(int port, const std::string& cookie) const;

  Job job_;
  AgentId host_;
  Endpoint at_;
  bool any_;
  std::chrono::milliseconds silence_;
  Rendezvous rendezvous_;
  std::unique_ptr<StoreServer> agents_;
  int port_;                              // of agents_
  std::unique_ptr<StoreServer> workers_;  // of the running attempt
  int open_for_ = -1;                     // that attempt
  std::unique_ptr<Store> store_;
  std::int64_t heard_ = 0;
  std::set<AgentId> known_, gone_;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace ring
