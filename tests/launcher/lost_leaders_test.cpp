// The leader of a job is lost under random schedules: agents and the rendezvous of successors, without sockets and on a
// simulated clock.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "launcher/messages.h"
#include "launcher/rendezvous.h"

namespace ring {
namespace {

using Time = Rendezvous::Time;
using Kind = Order::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Runs a random schedule of a whole job: agents are killed, hosts go down and networks split while an attempt is met
// for, runs, is stopped or ends, so that the leader is lost in every phase, also several times. Agents and leaders act
// as in launcher/rendezvous_client.cpp and launcher/leader.cpp; messages and notices are delayed.
class ScheduledJob {
 public:
  explicit ScheduledJob(std::uint64_t seed) : seed_(seed) {
    max_nodes_ = 2 + draw(4);
    min_nodes_ = 1 + draw(max_nodes_);
    const int count = max_nodes_ + draw(2);
    for (int i = 0; i < count; ++i) agents_[std::to_string(i)];
    agents_["0"].leading = std::make_unique<Rendezvous>(rules("0"), now_);
    for (auto& [id, a] : agents_) join(id, a, "0");
  }

  void run() {
    for (int turn = 0; turn < 6'000 && !is_over(); ++turn) {
      now_ += milliseconds(1 + draw(turn < kDisturbed ? 2'000 : 10'000));
      if (turn < kDisturbed) disturb();
      if (turn == kDisturbed)
        for (auto& [id, a] : agents_) a.side = 0;
      lead();
      for (auto& [id, a] : agents_)
        if (a.alive && !a.over) follow(id, a);
      check();
    }
    EXPECT_TRUE(is_over()) << "an agent waits for ever";
  }
  int takeovers() const { return takeovers_; }
  int stays() const { return stays_; }  // nodes whose workers stayed for the next attempt

 private:
  static constexpr int kDisturbed = 150;  // turns
  struct Sent {
    Time at;
    Report report;
  };
  struct Session {
    AgentId agent;
    bool gone = false;
    std::optional<Time> lost_since = {};
    std::vector<Order> orders = {};  // for the agent
  };
  struct Agent {
    bool alive = true, host_up = true, over = false;
    int side = 0;  // of a split network
    std::unique_ptr<Rendezvous> leading;
    std::map<AgentId, Session> sessions;  // of its leader
    std::vector<Sent> reports;            // on their way to its leader, or waiting in its store

    AgentId leader, session;  // empty while it has none
    int joins = 0;
    std::size_t orders_read = 0;
    std::optional<Heritage> heritage;
    std::set<AgentId> closed_leaders;
    std::optional<Time> lost_since, find_until;
    Time next_look{};
    std::optional<Order> started, pending;  // pending: to start once its workers have ended
    std::optional<NodeEnd> ended;
    bool running = false, stopping = false, may_stay = false;
    int newest = -1;
    int kept = -1;  // attempt whose surviving workers wait; -1 if there are none
  };

  int draw(int below) { return static_cast<int>(random_bits({seed_, 0, 0}, n_++) % static_cast<unsigned>(below)); }
  RendezvousRules rules(const AgentId& host) const {
    return {.host = host, .min_nodes = min_nodes_, .max_nodes = max_nodes_, .max_restarts = 3};
  }
  bool reaches(const Agent& a, const Agent& b) const { return a.host_up && b.host_up && a.side == b.side; }
  Presence look(const Agent& from, const AgentId& to) {
    const Agent& other = agents_[to];
    if (!reaches(from, other)) return Presence::unknown;
    return other.alive && !other.over ? Presence::alive : Presence::ended;
  }
  void send(Agent& a, Report r) {
    if (a.leader.empty()) return;
    r.from = a.session;
    Agent& leader = agents_[a.leader];
    Time at = now_ + milliseconds(draw(1'500));
    for (const Sent& s : leader.reports)
      if (s.report.from == r.from) at = std::max(at, s.at);
    leader.reports.push_back({at, std::move(r)});
  }
  void join(const AgentId& id, Agent& a, const AgentId& to) {
    a.leader = to;
    a.session = id + "#" + std::to_string(a.joins++);
    a.orders_read = 0;
    a.lost_since.reset();
    agents_[to].sessions[a.session] = {id};
    NodeOffer offer{.host = "h" + id, .process = id, .heritage = a.heritage};
    if (a.started) offer.attempt = a.started->attempt, offer.leader = a.started->leader;
    send(a, {.offer = offer});
    if (a.started && a.ended) send(a, {.attempt = a.started->attempt, .end = a.ended});
  }
  void leave(Agent& a) {
    if (!a.leader.empty()) agents_[a.leader].sessions[a.session].lost_since = now_ - seconds(100);
    a.leader.clear();
  }

  // Leaders: the reports that have arrived, agents that are lost, and orders.
  void lead() {
    for (auto& [id, a] : agents_) {
      if (!a.alive || !a.leading) continue;
      for (auto& [name, s] : a.sessions) watch(a, name, s);
      std::vector<Sent> later;
      for (Sent& s : std::exchange(a.reports, {})) {
        Session& from = a.sessions[s.report.from];
        if (s.at > now_ || (!reaches(a, agents_[from.agent]) && !from.gone))
          later.push_back(s);
        else if (!from.gone)
          handle(*a.leading, s.report);
      }
      a.reports.insert(a.reports.end(), later.begin(), later.end());
      for (const Member& m : a.leading->members_to_probe())
        if (draw(3) == 0 && look(a, m.process) == Presence::ended) a.leading->on_process_ended(m.process, now_);
      a.leading->tick(now_);
      for (auto& [to, order] : a.leading->take_orders()) {
        if (order.kind == Kind::start) order.leader = id;
        a.sessions[to].orders.push_back(order);
      }
      announce(id, a);
    }
  }
  void watch(Agent& leader, const AgentId& name, Session& s) {
    if (s.gone) return;
    const Agent& a = agents_[s.agent];
    const bool silent = !reaches(leader, a), closed = !silent && (!a.alive || a.over || a.session != name);
    if (!silent && !closed) return s.lost_since.reset();
    if (!s.lost_since) s.lost_since = now_;
    if (now_ < *s.lost_since + (closed ? milliseconds(0) : milliseconds(kSilence))) return;
    s.gone = true;
    leader.leading->leave(name, closed ? "its connection closed" : "no sign of life", now_,
                          closed && !a.alive && a.session == name);
    if (silent) s.orders.push_back({.kind = Kind::end, .text = "given up", .code = 1});
  }
  void handle(Rendezvous& r, const Report& report) {
    if (report.offer) r.join(report.from, *report.offer, now_);
    if (report.failure) r.on_failure(report.from, report.attempt, *report.failure, now_);
    if (report.end) r.on_end(report.from, report.attempt, *report.end, now_);
  }
  // A successor that has started an attempt calls agents that still follow an earlier leader.
  void announce(const AgentId& id, Agent& a) {
    const Heritage own = a.leading->heritage();
    if (id == "0" || own.leader != id) return;
    for (auto& [other, b] : agents_)
      if (b.alive && b.leading && reaches(a, b) && b.leading->is_joining() &&
          own.attempt > b.leading->heritage().attempt)
        redirect(b, id);
  }
  void redirect(Agent& from, const AgentId& to) {
    for (auto& [name, s] : from.sessions)
      if (!s.gone) s.orders.push_back({.kind = Kind::move, .text = to});
    from.leading.reset();
  }

  // Agents.
  void follow(const AgentId& id, Agent& a) {
    work(a);
    if (a.leader.empty()) return find(id, a);
    Agent& leader = agents_[a.leader];
    Session& s = leader.sessions[a.session];
    while (reaches(a, leader) && leader.alive && a.orders_read < s.orders.size()) {
      const Order order = s.orders[a.orders_read++];
      obey(id, a, order);
      if (a.over || order.kind == Kind::move) return;
    }
    const bool silent = !reaches(a, leader), closed = !silent && (!leader.alive || leader.over);
    if (!silent && !closed) {
      a.lost_since.reset();
      if (a.find_until && now_ >= a.next_look) look_again(id, a);
      return;
    }
    if (!a.lost_since) a.lost_since = now_;
    if (now_ < *a.lost_since + (closed ? milliseconds(draw(500)) : milliseconds(kSilence + draw(1'000)))) return;
    if (closed && !leader.alive) a.closed_leaders.insert(a.leader);
    a.leader.clear();
    a.leading.reset();
    a.pending.reset();
    a.stopping = a.running;
    a.may_stay = closed && !leader.alive;
    find(id, a);
  }
  void obey(const AgentId& id, Agent& a, const Order& order) {
    if (order.kind == Kind::move) {
      leave(a);
      a.pending.reset();
      a.stopping = a.running;
      a.may_stay = false;
      return join(id, a, order.text);
    }
    if (const auto& h = order.heritage) {
      if (h->leader == a.leader || !a.heritage || h->attempt >= a.heritage->attempt) a.heritage = h;
      if (h->leader == a.leader) a.find_until.reset(), a.closed_leaders.clear();
    }
    if (order.kind == Kind::end) a.over = true, a.running = false;
    if (order.kind == Kind::stop && a.running && a.started->attempt == order.attempt) {
      a.stopping = true;
      a.may_stay = order.may_stay;
    }
    if (order.kind != Kind::start) return;
    if (a.running)
      a.pending = order;
    else
      begin(a, order);
  }
  void begin(Agent& a, const Order& order) {
    EXPECT_GT(order.attempt, a.newest) << "an attempt once only";
    EXPECT_TRUE(!order.may_stay || (a.kept >= 0 && a.kept >= newest_with_steps_)) << "the survivors have an old state";
    stays_ += order.may_stay;
    a.kept = -1;
    a.newest = order.attempt;
    a.started = order;
    a.ended.reset();
    a.running = true;
    a.stopping = false;
  }
  void work(Agent& a) {
    if (!a.running) return;
    const bool fails = !a.stopping && draw(150) == 0, ends = !a.stopping && draw(300) == 0;
    const bool stay =
        !ends && (fails || a.may_stay) && draw(5) > 0 && with_steps_.contains({a.started->leader, a.started->attempt});
    NodeFailure failure{Blame::killed, 9, true, "it failed"};
    failure.replaceable = stay;
    if (fails) send(a, {.attempt = a.started->attempt, .failure = failure});
    if (!fails && !ends && !(a.stopping && draw(2) == 0)) return;
    a.ended = NodeEnd{ends ? 0 : 143, false, true, draw(50), stay};
    a.kept = stay ? a.started->attempt : -1;
    a.running = a.may_stay = false;
    send(a, {.attempt = a.started->attempt, .end = a.ended});
    if (const auto next = std::exchange(a.pending, {})) begin(a, *next);
  }
  void find(const AgentId& id, Agent& a) {
    if (!a.heritage || (a.find_until && now_ >= *a.find_until)) {  // nothing was started, or nobody is left
      a.over = !a.running;
      return;
    }
    if (!a.find_until) a.find_until = now_ + seconds(700);
    if (const auto to = choose_leader(*a.heritage, id, [&](const Member& m) { return look(a, m.process); }))
      go_to(id, a, to->process);
  }
  void go_to(const AgentId& id, Agent& a, const AgentId& to) {
    if (to == id && !a.leading) {
      a.leading =
          std::make_unique<Rendezvous>(rules(id), *a.heritage, "the agent of node 0 is lost", a.closed_leaders, now_);
      ++takeovers_;
    }
    join(id, a, to);
    if (to == a.heritage->leader) a.find_until.reset();
    a.next_look = now_ + seconds(1);
  }
  void look_again(const AgentId& id, Agent& a) {
    if (now_ >= *a.find_until) return leave(a);
    const auto to = choose_leader(*a.heritage, id, [&](const Member& m) { return look(a, m.process); });
    a.next_look = now_ + seconds(1);
    if (!to || to->process == a.leader) return;
    if (a.leading) redirect(a, to->process);
    leave(a);
    go_to(id, a, to->process);
  }

  void disturb() {
    for (auto& [id, a] : agents_) {
      if (!a.alive || a.over) continue;
      const int what = draw(a.leading ? 60 : 150);
      if (what == 0) a.alive = false;                              // the process is killed
      if (what == 1 && draw(2) == 0) a.alive = a.host_up = false;  // its host goes down
      if (what == 2) a.side = 1 - a.side;
    }
    if (draw(15) == 0)
      for (auto& [id, a] : agents_) a.side = 0;
  }
  // An attempt makes steps once the workers of all its nodes run. Expects that at most one attempt does.
  void check() {
    std::map<std::pair<AgentId, int>, std::pair<int, int>> attempts;  // nodes that run it, and all its nodes
    for (const auto& [id, a] : agents_)
      if (a.alive && a.running) {
        auto& [here, all] = attempts[{a.started->leader, a.started->attempt}];
        ++here;
        all = a.started->nodes;
      }
    int complete = 0;
    for (const auto& [name, nodes] : attempts) {
      if (nodes.first != nodes.second) continue;
      ++complete;
      with_steps_.insert(name);
      newest_with_steps_ = std::max(newest_with_steps_, name.second);
    }
    EXPECT_LE(complete, 1) << "two leaders train the same run";
  }
  bool is_over() const {
    for (const auto& [id, a] : agents_)
      if (a.alive && (!a.over || a.running)) return false;
    return true;
  }

  static constexpr int kSilence = 30'000;  // milliseconds
  std::uint64_t seed_, n_ = 0;
  int max_nodes_ = 0, min_nodes_ = 0, takeovers_ = 0, stays_ = 0;
  Time now_{seconds(1000)};
  std::map<AgentId, Agent> agents_;
  std::set<std::pair<AgentId, int>> with_steps_;  // attempts that could make steps, by leader and number
  int newest_with_steps_ = -1;
};

// RING_SCHEDULES sets the number of schedules.
TEST(SlowRendezvous, AnyLossOfLeadersLeavesOneAttemptAndAnEnd) {
  const char* const asked = std::getenv("RING_SCHEDULES");
  const std::uint64_t schedules = asked ? std::stoull(asked) : 2'000;
  std::uint64_t takeovers = 0, stays = 0;
  for (std::uint64_t seed = 0; seed < schedules && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ScheduledJob job(seed);
    job.run();
    takeovers += static_cast<std::uint64_t>(job.takeovers());
    stays += static_cast<std::uint64_t>(job.stays());
  }
  EXPECT_GT(stays, schedules / 10) << "the schedules hardly keep workers";
  EXPECT_GT(takeovers, schedules / 2) << "the schedules hardly lose a leader";
}

}  // namespace
}  // namespace ring
