#pragma once
// Decides for all agents of a job when an attempt starts and who takes part, when it stops everywhere, whether it is
// restarted, and how the job ends. A state machine without sockets or clocks: reports come in with the time, and orders
// go out. It runs in the agent on node 0 or in the agent that succeeds it (launcher/leader.h, launcher/succession.h).

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
#include "launcher/succession.h"

namespace ring {

// An agent that wants to join.
struct NodeOffer {
  std::string host;
  int node_rank = -1;  // requested node rank; -1 means any
  int workers = 1;
  AgentId process = {};  // id of the agent's process; if empty, the id of the connection is used
  Endpoint at = {};      // address at which the agent listens
  // State of the job as this agent knows it; nullopt if the agent has never belonged to the job. A message contains
  // only heritage_key: the leader reads the state from its store under this key (launcher/messages.h).
  std::string heritage_key = {};
  std::optional<Heritage> heritage = {};
  // The last attempt that was started on this node (-1 if there was none), and the leader that started it.
  int attempt = -1;
  AgentId leader = {};
};

// Reasons why a worker ended, from the least to the most plausible as the root cause.
enum class Blame : std::uint8_t { lost_peer, hung, failed, killed };

// The first failure of a node in an attempt.
struct NodeFailure {
  Blame blame = Blame::failed;
  int code = 1;             // exit code of the job
  bool restartable = true;  // true if a restart may help
  std::string text;         // e.g. "rank 3 on b (pid 71) was killed by signal 9 (Killed) after 12.5 s, in phase ..."
  std::vector<RankState> ranks = {};  // if hung: states of this node's ranks, for the verdict about all nodes
  bool misfit = false;                // true if the settings need a different number of processes
  // True if a single worker, or a whole node, was killed and the other workers may stay for the next attempt.
  bool replaceable = false;
};

// Reports that all workers of a node have ended, or that they wait to join the next attempt.
struct NodeEnd {
  int code = 0;
  bool stopped = false;        // true if a signal stopped them
  bool begun = false;          // true if this or an earlier attempt has started the run in its directory
  std::int64_t step = 0;       // number of steps done
  bool stay = false;           // true if all workers, except one that was lost, wait to join the next attempt
  std::set<int> misfits = {};  // world sizes that do not fit the settings, as computed by the workers
};

struct Order {
  enum class Kind : std::uint8_t { wait, start, stop, end, report_states, move };
  Kind kind = Kind::wait;
  // The text depends on `kind`. wait: who is missing; start: the previous failure; stop, end: the reason;
  // report_states, move: empty.
  std::string text;
  std::string verdict;  // if kind is end, after a failure: why there is no restart; empty if that is obvious
  int attempt = 0;
  int code = 0;  // if kind is end: exit code of the launcher
  bool begun = false;
  int node_rank = 0, nodes = 1, first_rank = 0, world = 1;  // set if kind is start
  // stop: true if workers that survive may wait to join the next attempt. start: true if those of this node join it.
  // wait: false once an attempt has begun, so that survivors need not wait any more.
  bool may_stay = false;
  int replacements = 0;  // if kind is start: as in Heritage, including this attempt
  // If kind is start: address of the workers' store, filled in by the leader. If kind is move: address of the agent
  // that leads the job.
  Endpoint store;
  AgentId leader;                         // if kind is start: agent that hosts this store, filled in by the leader
  std::optional<Heritage> heritage = {};  // set if an attempt was started; not part of the message
};

struct RendezvousRules {
  AgentId host;  // process of the agent that leads; always node 0
  int min_nodes = 1, max_nodes = 1;
  int max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};  // time for all nodes to join, at the start and after each failure
  std::chrono::milliseconds last_call{30'000};      // time to wait for more nodes than min_nodes, at the start
  std::chrono::milliseconds return_timeout{2'000};  // time for lost nodes to rejoin; then min_nodes suffice
  std::chrono::milliseconds blame_time{1'000};      // time to wait for the root cause if workers only lost a peer
  std::string advice;                               // appended to messages about missing nodes
};

class Rendezvous {
 public:
  using Time = AwakeClock::time_point;

  Rendezvous(RendezvousRules, Time now);
  // Continues the job of a leader that was lost. lost: the failure of its attempt, e.g. "the agent of node 0 is lost".
  // closed: leaders that this host followed until their connections closed (see `closed` of leave()).
  Rendezvous(RendezvousRules, const Heritage&, const std::string& lost, const std::set<AgentId>& closed, Time now);

  // Reports from agents. A report about an attempt that is not the running one is ignored. If an agent joins again, its
  // earlier connection counts as left.
  void join(const AgentId&, const NodeOffer&, Time now);
  void on_failure(const AgentId&, int attempt, const NodeFailure&, Time now);
  // Reports the states of this node's ranks, after an order of kind report_states: a rank on another node hangs.
  void on_states(const AgentId&, int attempt, const std::vector<RankState>&, Time now);
  void on_end(const AgentId&, int attempt, const NodeEnd&, Time now);
  // why: e.g. "its connection closed". closed: true if the connection closed without a goodbye, as it does when the
  // process ends; false if the agent said goodbye or fell silent, because it may have gone to a different leader.
  void leave(const AgentId&, const std::string& why, Time now, bool closed = false);
  // Call if connections to the process's address are refused. If its connection here closed before, it counts as ended.
  void on_process_ended(const AgentId& process, Time now);
  void tick(Time now);  // acts on deadlines; call often

  std::vector<std::pair<AgentId, Order>> take_orders();  // orders since the last call, oldest first
  bool is_over() const { return end_.has_value(); }
  bool is_joining() const { return !end_ && phase_ == Phase::joining; }  // true while no attempt runs
  std::vector<AgentId> agents() const;                                   // agents that are present
  // Returns the absent members that block the next attempt, because they may run one under a different leader. If one
  // of them turns out to have ended, call on_process_ended().
  std::vector<Member> members_to_probe() const;
  // Returns true if no other leader can start an attempt with nodes of the last attempt: more of these nodes are
  // present than are absent without proof that their processes have ended. In a tie, the leader that started the last
  // attempt has the quorum. A successor counts as present also agents that are new to the job: they were sent to it.
  bool has_quorum() const;
  Heritage heritage() const;  // state for the next leader

 private:
  enum class Phase : std::uint8_t { joining, running, stopping };
  struct Agent {
    AgentId id;
    NodeOffer offer;
    // Node rank in the running attempt, or in the last one in which it took part; -1 if there was none.
    int node_rank = -1;
    bool taking_part = false;
    std::optional<NodeEnd> end;
    bool reported_states = false;  // true once the states of its ranks have been reported
    std::string last_notice;       // text that was last sent to it while it waited
  };

  Agent* find(const AgentId&);
  const Agent* find_process(const AgentId&) const;
  void adopt(const Heritage&);                 // continues from this state of the job
  void place_in_attempt(Agent&) const;         // sets the node rank, and whether the agent's workers run this attempt
  bool ran_last_attempt(const Agent&) const;   // true if the agent was a node of the last attempt when it joined
  std::vector<Member> absent_members() const;  // disconnected nodes of the last attempt that may still be running
  void queue_order(const Agent&, Order);
  void notify_waiting_agents(const std::string& text);  // tells agents outside the attempt what they are waiting for
  void notify_spare_agents();                           // tells spare agents that they wait to join or replace a node
  std::vector<Agent*> seats();                          // agents by node rank; null if the node rank is free
  bool has_enough_nodes(std::size_t seated, Time now) const;  // true if an attempt may start with this many nodes
  void try_start(Time now);                                   // starts an attempt, or fails if join_timeout has passed
  bool fits_settings(const std::vector<Agent*>& seated) const;  // false if this number of ranks is known not to fit
  std::vector<Agent*> fewer_that_fit(std::vector<Agent*> seated) const;
  void start_attempt(const std::vector<Agent*>& seated);
  std::string missing_text(const std::vector<Agent*>& seats) const;
  std::string quorum_text() const;  // why there is no quorum; empty if there is one
  void stop_all(const std::string& why);
  bool all_ended() const;
  bool have_all_states() const;
  void request_states();             // orders all nodes to report the states of their ranks
  void restart_or_finish(Time now);  // restarts or ends the job, after all nodes have ended
  bool different_size_may_fit();
  void end_job(int exit_code, const std::string& why, const std::string& verdict = {});
  NodeFailure& cause();  // the most plausible root cause; requires a failure
  // Returns true if the known failures allow surviving workers to stay for the next attempt.
  bool may_stay() const;
  bool is_cause_known(Time now);

  RendezvousRules rules_;
  RestartBudget budget_;
  Phase phase_ = Phase::joining;
  int attempt_ = 0;
  int newest_attempt_ = -1;  // newest attempt that any leader is known to have started
  bool succeeds_ = false;    // true for a successor that has not started an attempt yet
  // The last attempt (its nodes by node rank, number, leader), and processes that have ended or disconnected since.
  std::vector<Member> members_;
  int started_attempt_ = -1;
  AgentId started_by_;
  std::set<AgentId> ended_processes_, closed_processes_;
  Time since_, last_arrival_;  // start of the join phase; time of the last join
  std::vector<Agent> agents_;  // in order of arrival
  std::vector<NodeFailure> failures_;
  bool worker_failed_ = false;    // true once an agent has reported a failure in the attempt
  int replacements_ = 0;          // number of attempts that survivors joined
  bool survivors_stay_ = false;   // true if the workers that survived the last attempt join the next one
  std::vector<RankState> ranks_;  // states of the ranks that have reported
  int world_ = 1;                 // number of ranks in the attempt
  std::set<int> misfits_;         // world sizes that do not fit the settings
  std::size_t nodes_ = 0;         // number of nodes in the attempt
  Time cause_deadline_{};
  std::string previous_failure_;  // failure of the last attempt
  std::int64_t step_ = 0;
  bool begun_ = false;
  std::optional<int> stopped_;  // set once a node was stopped by a signal: its exit code
  std::optional<Order> end_;
  std::vector<std::pair<AgentId, Order>> orders_;
};

}  // namespace ring
