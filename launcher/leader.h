#pragma once
// Coordinates a job from node 0: serves the store at which agents meet, receives their reports, lets Rendezvous decide,
// and hosts a new store for the workers of each attempt.

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
  // Throws Error if the endpoint cannot be served. Port 0 selects an ephemeral port. any_address: true to listen on all
  // addresses of this host. max_silence: time after which a silent agent counts as lost.
  Leader(Job, RendezvousRules, const Endpoint&, bool any_address, std::chrono::milliseconds max_silence);
  // If the job is over, waits up to a few seconds until all agents have left.
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  Endpoint own_endpoint() const;  // endpoint for this host's agent

 private:
  void run();
  void receive_reports();
  void handle_report(const std::string& report);
  void check_for_lost_agents();
  void send_orders();
  void open_store(int attempt);
  bool all_agents_left() const;
  std::unique_ptr<StoreServer> start_store(int port, const std::string& cookie) const;

  Job job_;
  AgentId host_;
  Endpoint at_;
  bool any_;
  std::chrono::milliseconds silence_;
  Rendezvous rendezvous_;
  std::unique_ptr<StoreServer> agents_;
  int port_;                              // port of agents_
  std::unique_ptr<StoreServer> workers_;  // store for the workers of the running attempt
  int open_for_ = -1;                     // the attempt that workers_ is open for; -1 if there is none
  std::unique_ptr<Store> store_;
  std::int64_t heard_ = 0;
  std::set<AgentId> known_, gone_;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace ring
