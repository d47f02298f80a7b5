#pragma once
// What the agents of a job do together: when an attempt starts and who takes part, when it stops everywhere, whether
// there is another one, and how the job ends. It knows neither sockets nor clocks: reports come in with the time, and
// orders go out. The agent of node 0 runs it (launcher/leader.h).

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/awake_clock.h"
#include "job/socket.h"
#include "launcher/rank_state.h"
#include "launcher/restart_budget.h"

namespace ring {

using AgentId = std::string;

// An agent that comes.
struct NodeOffer {
  std::string host;
  int node_rank = -1;  // that it asks for; -1: any
  int workers = 1;
};

// Why a worker ended, in the order in which one is taken for the cause of the others.
enum class Blame : std::uint8_t { lost_peer, hung, failed, killed };

// The first failure of a node in an attempt.
struct NodeFailure {
  Blame blame = Blame::failed;
  int code = 1;         // for the job to end with
  bool curable = true;  // a restart may help
  std::string text;     // "rank 3 on b (pid 71) was killed by signal 9 (Killed) after 12.5 s and step 120"
  std::vector<RankState> ranks = {};  // hung: where those of this node are; the verdict is about those of all nodes
  bool misfit = false;                // the settings want another number of processes
};

// All workers of a node are gone.
struct NodeEnd {
  int code = 0;
  bool stopped = false;   // as a signal had asked
  bool begun = false;     // see WorkerPage
  std::int64_t step = 0;  // done
};

struct Order {
  enum class Kind : std::uint8_t { wait, start, stop, end, look };
  Kind kind = Kind::wait;
  std::string text;     // wait: who is missing; start: what failed before; stop, end: why; look: nothing
  std::string verdict;  // end after a failure: why there is no restart, where that is not plain
  int attempt = 0;
  int code = 0;  // end: of the launcher
  bool begun = false;
  int node_rank = 0, nodes = 1, first_rank = 0, world = 1;  // start
  Endpoint store;                                           // start: where the workers meet, and
  AgentId leader;                                           // who hosts that: both are the leader's to fill in
};

struct RendezvousRules {
  AgentId host;  // the agent that serves the endpoint, which is node 0
  int least_nodes = 1, most_nodes = 1;
  int max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};  // for all nodes to come, at first and after each failure
  std::chrono::milliseconds last_call{30'000};      // for more than the least to come, at first
  std::chrono::milliseconds return_timeout{2'000};  // for those that were lost to come again, if the least are here
  std::chrono::milliseconds blame_time{1'000};      // for the cause to show where workers only lost a peer
  std::string advice;  // ends the messages that nodes are missing, and that they did not come
};

class Rendezvous {
 public:
  using Time = AwakeClock::time_point;

  Rendezvous(RendezvousRules, Time now);

  void join(const AgentId&, const NodeOffer&, Time now);
  void failed(const AgentId&, int attempt, const NodeFailure&, Time now);
  // Where the ranks of this node are, after an order to look: a rank of another one hangs.
  void looked(const AgentId&, int attempt, const std::vector<RankState>&, Time now);
  void ended(const AgentId&, int attempt, const NodeEnd&, Time now);
  void leave(const AgentId&, const std::string& why, Time now);  // "its connection closed"
  void tick(Time now);                                           // to be called often

  std::vector<std::pair<AgentId, Order>> take_orders();  // new since the last call, in their order
  bool over() const { return end_.has_value(); }
  std::vector<AgentId> agents() const;  // that are here

 private:
  enum class Phase : std::uint8_t { joining, running, stopping };
  struct Agent {
    AgentId id;
    NodeOffer offer;
    int node_rank = -1;  // of the running attempt, or of the last one that it took part in; -1: none
    bool taking_part = false;
    std::optional<NodeEnd> end;
    bool looked = false;  // where its ranks are is known
    std::string told;     // while it waits
  };

  Agent* find(const AgentId&);
  void give(const Agent&, Order);
  void tell_waiting(const std::string& text);
  void tell_spares();
  std::vector<Agent*> seats();
  bool enough(std::size_t seated, Time now) const;
  void try_start(Time now);
  bool fits(const std::vector<Agent*>& seated) const;
  std::vector<Agent*> fewer_that_fit(std::vector<Agent*> seated) const;
  void start(const std::vector<Agent*>& seated);
  std::string missing(const std::vector<Agent*>& seats) const;
  void stop_all(const std::string& why);
  bool all_ended() const;
  bool all_looked() const;
  void ask_all();
  void conclude(Time now);
  bool others_may_fit();
  void finish(int code, const std::string& why, const std::string& verdict = {});
  NodeFailure& cause();
  bool judged(Time now);

  RendezvousRules rules_;
  RestartBudget budget_;
  Phase phase_ = Phase::joining;
  int attempt_ = 0;
  Time since_, last_arrival_;  // of the joining
  std::vector<Agent> agents_;  // in the order of their coming
  std::vector<NodeFailure> failures_;
  std::vector<RankState> ranks_;  // where they are, as far as it was asked for
  int world_ = 1;                 // of the attempt
  std::set<int> misfits_;         // worlds that the settings do not fit
  std::size_t nodes_ = 0;         // that took part in it
  Time judge_at_{};
  std::string before_;  // what made the last attempt fail
  std::int64_t step_ = 0;
  bool begun_ = false;
  std::optional<int> stopped_;  // code of a node that a signal stopped
  std::optional<Order> end_;
  std::vector<std::pair<AgentId, Order>> orders_;
};

}  // namespace ring
