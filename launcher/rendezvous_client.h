#pragma once
// An agent's connection to the leader. One thread connects, sends heartbeats and receives orders; another thread sends
// reports, in order. The caller never waits for a broken connection. If the leader is lost after an attempt was
// started, the thread joins the agent that takes over, which may be this one (launcher/succession.h).

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "comm/queue.h"
#include "core/awake_clock.h"
#include "job/store.h"
#include "launcher/leader.h"
#include "launcher/messages.h"

namespace ring {

class RendezvousClient {
 public:
  struct Setup {
    AgentId id;
    Endpoint leader;  // address at which agents meet
    std::string cookie;
    NodeOffer offer;         // offer.at: address of this agent if it serves the rendezvous, otherwise empty
    std::string local_addr;  // address at which other nodes reach this one; may be empty
    std::chrono::milliseconds join_timeout{600'000};  // time limit for being admitted
    std::chrono::milliseconds silence{30'000};        // time after which a silent leader counts as lost
    // Makes this agent the leader. Null if the job has only one node: no other agent can take over.
    std::function<std::unique_ptr<Leader>(Leader::Succession)> lead;
  };
  explicit RendezvousClient(Setup);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  int fd() const { return wake_.get(); }  // readable if there is an order
  // Returns the next order, or nullopt. If no leader admits this agent in time, returns an order to end. Returns an
  // order to start only after the end of the previous attempt on this node was reported.
  std::optional<Order> next_order();
  void report(int attempt, const NodeFailure&);
  void report(int attempt, const NodeEnd&);
  void report(int attempt, const std::vector<RankState>&);
  // Returns what this agent waits for, at the start or after the leader was lost; empty once it is admitted.
  std::string who_is_missing();
  bool is_meeting() const { return meeting_; }  // true until an agent at Setup::leader has admitted this one

 private:
  using Clock = AwakeClock;

  void run();
  void meet();                 // joins the agent at Setup::leader
  void join(const Endpoint&);  // connects and offers this node; throws Error if the agent does not answer
  void follow();               // receives orders until the job is over or this agent must join a different leader
  void update_heritage();      // reads the state of the job from the leader's store
  void handle_order(Order);    // called by follow()
  void open_standby();         // opens this agent's own store, at its own address
  void tell_visitors(const std::string& key, const std::string& value);
  void on_leader_lost(const std::string& why);
  void drop_orders(const std::string& why, bool may_stay);  // may_stay: as in Order
  void find_leader();  // joins the leader that choose_leader() returns, and leads if it is this agent
  std::optional<Member> look_for_leader();  // chooses a leader as find_leader() does, while this agent has one
  bool is_better_leader_known();            // true if choose_leader() chooses a different agent from the current leader
  void go_to(const Member&);                // joins this member; if it is this process, becomes the leader first
  void move_to(const Endpoint&);            // leaves the current leader and joins the one at this address
  void stop_leading(const Endpoint& successor);
  void say_goodbye(const char* last_word);
  Probe make_probe();
  std::optional<Member> member(const AgentId& process) const;
  std::string own_session() const { return setup_.id + "#" + std::to_string(session_); }
  void set_waiting(const std::string& text);
  void queue_order(Order);
  std::deque<Order>::iterator next_due();  // requires mutex_
  void wake() const;                       // makes fd() readable
  void queue_end_order(const std::string& why);
  void send(const Report&);

  Setup setup_;
  Fd wake_;
  std::mutex mutex_;  // guards the following fields
  std::deque<Order> orders_;
  std::string waiting_for_;
  std::shared_ptr<Store> reports_;  // used for reports; null while there is no leader
  AgentId reports_from_;            // name of this connection to the leader
  std::optional<Order> started_;    // the newest order to start that next_order() returned
  std::optional<NodeEnd> ended_;    // how the attempt of started_ ended on this node, once it has
  bool told_to_stop_ = false;       // true once the attempt of started_ was stopped for a change of leader

  // Used only by thread_.
  int session_ = 0;               // number of this connection; to a leader, each connection is a separate agent
  std::unique_ptr<Store> store_;  // null while there is no leader
  Endpoint leader_at_;            // address of the leader
  AgentId leader_;                // process of the leader
  std::optional<Heritage> heritage_;
  std::string lost_;                             // how the last leader was lost
  std::set<AgentId> closed_leaders_;             // leaders that this agent followed until their connections closed
  std::set<AgentId> silent_;                     // members that did not answer look_for_leader(), until all were probed
  std::set<AgentId> ended_processes_;            // processes found ended since the last leader was lost
  std::optional<Clock::time_point> find_until_;  // set until a new leader has started an attempt
  Clock::time_point next_look_{};                // when to look for a better leader again
  std::optional<Endpoint> move_to_;              // set by an order: address of the leader to join next
  bool over_ = false;                            // true once the job is over
  std::shared_ptr<StoreServer> standby_;         // the store of this agent, while it does not lead
  bool standby_any_ = false;                     // true if standby_ listens on all addresses
  std::unique_ptr<Leader> leading_;              // set while this agent leads as a successor

  std::atomic<bool> closing_{false}, meeting_{true};
  std::thread thread_;
  std::unique_ptr<CommQueue> outbox_ = std::make_unique<CommQueue>();
};

}  // namespace ring
