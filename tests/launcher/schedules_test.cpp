// The state machine of the rendezvous under random schedules, on a simulated clock.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "core/exit_code.h"
#include "core/philox.h"
#include "launcher/messages.h"
#include "launcher/rendezvous.h"

namespace ring {
namespace {

using Time = Rendezvous::Time;
using Kind = Order::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

RankState waiting_rank(int rank, int world) {
  return {.rank = rank, .phase = "reduce", .groups = {{"dp", 0, world, 5, 5, 4, "all_reduce", "x.cpp:1", false, {}}}};
}

// Runs a random schedule: agents join, fail, hang, are lost and return, while their reports are delayed. A cut link
// holds back reports and orders. It either heals, or the leader gives up the node, whose workers continue until that
// node gives up, too. The clock advances until the job is over, which it must be.
class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : seed_(seed) {
    rules_.host = "0";
    rules_.max_nodes = 1 + draw(5);
    rules_.min_nodes = 1 + draw(rules_.max_nodes);
    rules_.max_restarts = draw(4);
    unit_ = 1 + draw(2);
    rendezvous_.emplace(rules_, now_);
    for (int i = 0; i < rules_.max_nodes + draw(2); ++i) arrive();
  }

  void run() {
    for (int turn = 0; turn < 20'000 && !(rendezvous_->is_over() && everybody_ended()); ++turn) {
      now_ += milliseconds(1 + draw(turn < 200 ? 2'000 : 20'000));
      heal();
      deliver();
      if (turn < 200) disturb();
      rendezvous_->tick(now_);
      obey();
      check();
    }
    EXPECT_TRUE(rendezvous_->is_over());
    EXPECT_TRUE(everybody_ended());
  }
  int num_stays() const { return num_stays_; }  // nodes whose workers stayed

 private:
  struct Node {
    int workers = 1;
    bool alive = true, over = false;
    bool joined = false, given_up = false;  // the leader knows the node, or has given it up
    bool cut_off = false;                   // until one of these times
    Time heals{}, leader_gives_up{}, gives_up{};
    int running = -1;  // attempt; -1 if none
    bool stopping = false, may_stay = false;
    int kept = -1;             // attempt whose surviving workers wait; -1 if there are none
    Order order;               // the last order to start
    std::vector<Order> inbox;  // on their way to the node
  };
  struct Sent {
    Time at;
    Report report;
  };

  int draw(int below) { return static_cast<int>(random_bits({seed_, 0, 0}, n_++) % static_cast<unsigned>(below)); }
  void arrive() {
    const AgentId id = std::to_string(nodes_.size());
    nodes_[id].workers = 1 + draw(3);
    send({.from = id, .offer = NodeOffer{"h", -1, nodes_[id].workers}});
  }
  // Reports of one agent arrive in order.
  void send(const Report& r) {
    Time at = now_ + milliseconds(draw(3'000));
    for (const Sent& s : sent_)
      if (s.report.from == r.from) at = std::max(at, s.at);
    sent_.push_back({at, r});
  }
  void deliver() {
    std::vector<Sent> rest;
    for (const Sent& s : std::exchange(sent_, {})) {
      const Report& r = s.report;
      Node& node = nodes_[r.from];
      if (s.at > now_ || node.cut_off) {
        rest.push_back(s);
      } else if (node.alive) {
        if (r.offer) rendezvous_->join(r.from, *r.offer, now_), node.joined = true;
        if (r.ranks) rendezvous_->on_states(r.from, r.attempt, *r.ranks, now_);
        if (r.failure && !node.given_up) failed_at_.emplace(r.attempt, now_);
        if (r.failure) rendezvous_->on_failure(r.from, r.attempt, *r.failure, now_);
        if (r.end) rendezvous_->on_end(r.from, r.attempt, *r.end, now_);
      }
    }
    sent_.insert(sent_.end(), rest.begin(), rest.end());
  }
  void end_workers(const AgentId& id, Node& node, int code, bool stopped = false) {
    const bool stay = node.may_stay && !stopped && draw(5) > 0;
    send({.from = id, .attempt = node.running, .end = NodeEnd{code, stopped, true, draw(50), stay}});
    node.kept = stay ? node.running : -1;
    node.running = -1;
    node.stopping = node.may_stay = false;
  }
  void cut_off(Node& node) {
    node.cut_off = true;
    node.heals = now_ + milliseconds(draw(2 * kSilence));
    node.leader_gives_up = now_ + milliseconds(kSilence + draw(1'000));
    node.gives_up = now_ + milliseconds(kSilence + draw(1'000));
  }
  void heal() {
    for (auto& [id, node] : nodes_) {
      if (!node.cut_off) continue;
      if (!node.given_up && now_ >= node.leader_gives_up) {
        collect();
        node.given_up = true;
        rendezvous_->leave(id, "no sign of life", now_);
        node.inbox.push_back({.kind = Kind::end, .text = "given up", .code = 1});
      }
      if (now_ >= node.heals && node.alive) node.cut_off = false;
      if (node.cut_off && now_ >= node.gives_up) node.alive = false;
    }
  }
  std::vector<RankState> ranks_of(const Node& node) {
    std::vector<RankState> ranks;
    for (int i = 0; i < node.workers; ++i) {
      const bool waits = draw(2) == 0;
      ranks.push_back(waiting_rank(node.order.first_rank + i, node.order.world));
      ranks.back().stopped = draw(10) == 0;
      if (!waits) ranks.back().phase = "forward", ranks.back().groups.clear();
    }
    return ranks;
  }
  void disturb() {
    for (auto& [id, node] : nodes_) {
      if (!node.alive || node.over) continue;
      const int what = draw(60);
      if (what == 0 && (id != "0" || draw(8) == 0)) {
        node.alive = node.cut_off = false;
        if (!node.given_up) rendezvous_->leave(id, "it was killed", now_, true);
      } else if (what == 1 && node.running >= 0 && !node.stopping) {
        const auto blame = static_cast<Blame>(draw(4));
        NodeFailure failure{blame, 9, draw(20) > 0, "it failed"};
        if (blame == Blame::hung) failure.ranks = ranks_of(node);
        failure.replaceable = node.may_stay = blame == Blame::killed && draw(2) == 0;
        send({.from = id, .attempt = node.running, .failure = failure});
        node.stopping = blame != Blame::hung;  // the leader decides about hangs
      } else if (what == 2 && node.running >= 0 && draw(10) == 0) {
        end_workers(id, node, kExitInterrupted, true);
      } else if (what == 3 && id != "0" && node.joined && !node.given_up) {
        cut_off(node);
      }
    }
    if (draw(40) == 0 && nodes_.size() < 20) arrive();
  }
  void obey(const AgentId& id, Node& node, const Order& order) {
    if (order.kind == Kind::start) {
      EXPECT_LT(node.running, 0) << "started twice";
      EXPECT_GT(order.attempt, newest_of_[id]) << "an attempt once only";
      EXPECT_TRUE(!order.may_stay || node.kept == order.attempt - 1) << "survivors of an older attempt, or none";
      if (node.kept == order.attempt - 1) {
        EXPECT_EQ(order.may_stay, stays_in_.emplace(order.attempt, order.may_stay).first->second) << "all or none";
      }
      num_stays_ += order.may_stay;
      node.kept = -1;
      node.running = newest_of_[id] = order.attempt;
      node.stopping = order.world % unit_ != 0;
      node.order = order;
      NodeFailure misfit{Blame::failed, 1, true, "the settings do not fit"};
      misfit.misfit = true;
      if (node.stopping) send({.from = id, .attempt = node.running, .failure = misfit});
    }
    if (order.kind == Kind::report_states && node.running == order.attempt && draw(5) > 0)
      send({.from = id, .attempt = node.running, .ranks = ranks_of(node)});
    if (order.kind == Kind::stop && node.running == order.attempt) {
      node.stopping = true;
      node.may_stay = order.may_stay;
    }
    if (order.kind == Kind::end) node.over = true, node.stopping = true;
  }
  void collect() {
    for (auto& [id, order] : rendezvous_->take_orders()) {
      EXPECT_FALSE(nodes_[id].given_up) << "who is given up has no part in what follows";
      if (order.kind == Kind::stop) stopped_ = order.attempt;
      nodes_[id].inbox.push_back(order);
    }
  }
  void obey() {
    collect();
    for (auto& [id, node] : nodes_) {
      if (!node.cut_off)
        for (const Order& order : std::exchange(node.inbox, {})) obey(id, node, order);
      if (!node.alive || node.running < 0) continue;
      if (node.stopping && draw(3) == 0)
        end_workers(id, node, 143);
      else if (!node.stopping && draw(100) == 0)
        end_workers(id, node, 0);
    }
  }
  // Expects that all workers run the same attempt, and that the ranks of an attempt fit together. Only a node that was
  // given up and does not know it may still run; it has lost the right to save (checkpoint/writer_token.h).
  void check() {
    std::map<int, int> places;  // node rank -> first rank
    int attempt = -1, nodes = 0, world = 0;
    for (const auto& [id, node] : nodes_) {
      if (!node.alive || node.running < 0 || node.given_up) continue;
      EXPECT_TRUE(attempt < 0 || attempt == node.running) << "attempts " << attempt << " and " << node.running;
      attempt = node.running;
      const auto failed = failed_at_.find(attempt);
      EXPECT_TRUE(failed == failed_at_.end() || now_ < failed->second + rules_.blame_time || stopped_ >= attempt)
          << "a failure that nobody judges";
      EXPECT_TRUE(places.emplace(node.order.node_rank, node.order.first_rank).second) << "one place for two nodes";
      EXPECT_LT(node.order.first_rank, node.order.world);
      EXPECT_TRUE(nodes == 0 || (nodes == node.order.nodes && world == node.order.world));
      nodes = node.order.nodes, world = node.order.world;
      EXPECT_GE(nodes, rules_.min_nodes);
      EXPECT_LE(nodes, rules_.max_nodes);
      if (node.order.node_rank == 0) {
        EXPECT_EQ(id, "0") << "the leader is node 0";
      }
    }
  }
  bool everybody_ended() const {
    for (const auto& [id, node] : nodes_)
      if (node.alive && (!node.over || node.running >= 0)) return false;
    return true;
  }

  int unit_ = 1;                           // the settings fit multiples of this many workers
  static constexpr int kSilence = 30'000;  // milliseconds
  std::uint64_t seed_, n_ = 0;
  Time now_{seconds(1000)};
  RendezvousRules rules_;
  std::optional<Rendezvous> rendezvous_;
  std::map<AgentId, Node> nodes_;
  std::map<AgentId, int> newest_of_ = [] {
    std::map<AgentId, int> none;
    for (int i = 0; i < 40; ++i) none[std::to_string(i)] = -1;
    return none;
  }();
  std::vector<Sent> sent_;
  std::map<int, Time> failed_at_;  // attempt -> first failure that the leader got
  int stopped_ = -1;               // the latest attempt that was stopped
  std::map<int, bool> stays_in_;   // for each attempt: whether the survivors of the one before join it
  int num_stays_ = 0;
};

// RING_SCHEDULES sets the number of schedules.
TEST(SlowRendezvous, AnyScheduleHasOneAttemptAtATimeAndAnEnd) {
  const char* const asked = std::getenv("RING_SCHEDULES");
  const std::uint64_t schedules = asked ? std::stoull(asked) : 5'000;
  std::uint64_t stays = 0;
  for (std::uint64_t seed = 0; seed < schedules && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Schedule schedule(seed);
    schedule.run();
    stays += static_cast<std::uint64_t>(schedule.num_stays());
  }
  EXPECT_GT(stays, schedules / 10) << "the schedules hardly keep workers";
}

}  // namespace
}  // namespace ring
