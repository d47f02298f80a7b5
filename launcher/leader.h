#pragma once
// Coordinates a job from node 0, or from the node that succeeds it: serves the store at which agents meet, receives
// their reports, lets Rendezvous decide, and hosts a new store for the workers of each attempt.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>

#include "job/store.h"
#include "launcher/job.h"
#include "launcher/rendezvous.h"

namespace ring {

// Opens a store. any_address: true to listen on all IPv6 and IPv4 addresses of this host. Throws ListenError.
std::unique_ptr<StoreServer> start_store(const Endpoint&, bool any_address, const std::string& cookie);

class Leader {
 public:
  // Throws Error if the endpoint cannot be served. Port 0 selects an ephemeral port. any_address: true to listen on all
  // addresses of this host. max_silence: time after which a silent agent counts as lost.
  Leader(Job, RendezvousRules, const Endpoint&, bool any_address, std::chrono::milliseconds max_silence);

  // Holds the state with which an agent takes over the job after the leader was lost.
  struct Succession {
    std::shared_ptr<StoreServer> store;  // the store that the agent serves since its start
    Endpoint at;                         // address of `store` for other nodes
    bool any_address = false;            // true if `store` listens on all addresses of this host
    Heritage heritage;
    std::string lost;          // failure of the attempt, e.g. "the agent of node 0 is lost"
    std::set<AgentId> closed;  // leaders that this agent followed until their connections closed
    Endpoint front;            // --rdzv-endpoint; agents that join there are redirected to this leader
  };
  Leader(Job, RendezvousRules, const Succession&, std::chrono::milliseconds max_silence);

  // If the job is over, waits up to a few seconds until all agents have left.
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  Endpoint own_endpoint() const;  // endpoint for this host's agent
  // Redirects all agents, including those that join later, to the leader at this address.
  void redirect_agents(const Endpoint&);
  std::shared_ptr<StoreServer> store() const { return agents_; }  // null if the rendezvous failed

 private:
  Leader(Job, RendezvousRules, std::optional<Succession>, std::shared_ptr<StoreServer>, const Endpoint&,
         bool any_address, std::chrono::milliseconds max_silence);
  void run();
  void receive_reports();
  void handle_report(const std::string& report);
  void check_for_lost_agents();
  void send_orders();
  void open_store(int attempt);
  bool all_agents_left() const;
  void on_moved(const Endpoint&, int attempt);
  bool send_redirects();  // redirects all agents if a different agent leads the job; otherwise returns false
  void exchange_with_scout();
  // The scout is a thread for connections that may take long. It finds out whether processes of absent members have
  // ended. It tells agents at fronts_, the rendezvous endpoint and the addresses of absent members, who leads the job.
  void run_scout(const std::stop_token&);
  void announce_at(const Endpoint& front, int attempt, bool started);  // tells the agent at `front` who leads the job

  Job job_;
  AgentId host_;
  Endpoint at_;
  bool any_;
  std::chrono::milliseconds silence_;
  std::optional<Succession> succession_;  // nullopt for the agent of the rendezvous endpoint
  Rendezvous rendezvous_;
  std::shared_ptr<StoreServer> agents_;
  int port_;                              // port of agents_
  std::unique_ptr<StoreServer> workers_;  // store for the workers of the running attempt
  int open_for_ = -1;                     // the attempt that workers_ is open for; -1 if there is none
  std::unique_ptr<Store> store_;
  std::int64_t heard_ = 0;
  std::optional<Heritage> published_;  // state of the job that was last written to agents_
  std::set<AgentId> known_, gone_, redirected_;
  std::set<AgentId> closed_;  // connections that ended before the newest reports were read
  std::atomic<bool> closing_{false};

  std::mutex mutex_;  // guards the following fields
  std::condition_variable_any scout_wake_;
  std::optional<Endpoint> moved_;  // set once a different agent leads the job
  int moved_attempt_ = -1;         // newest attempt of the agent that announced itself at moved_
  std::vector<Member> to_probe_;   // members_to_probe() of rendezvous_
  std::vector<AgentId> ended_;     // processes that the scout found ended
  int attempt_ = -1;               // the attempt that was started last
  bool started_ = false;           // true once this leader has started an attempt
  std::vector<Endpoint> fronts_;   // addresses at which announce_at() looks for agents

  std::thread thread_;
  std::jthread scout_;  // declared last, so that it ends before the objects that it uses
};

}  // namespace ring
