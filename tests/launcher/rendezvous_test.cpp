// The state machine of the rendezvous, without sockets and on a clock of its own.

#include "launcher/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "core/exit_code.h"
#include "core/philox.h"
#include "launcher/messages.h"

namespace ring {
namespace {

using Time = Rendezvous::Time;
using Kind = Order::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Agents of one worker each, and what they were told last.
class Job {
 public:
  explicit Job(RendezvousRules rules) : rendezvous_(with_host(std::move(rules)), now_) {}

  void join(const AgentId& id, int node_rank = -1, int workers = 1) {
    rendezvous_.join(id, {"host-" + id, node_rank, workers}, now_);
    collect();
  }
  void fails(const AgentId& id, const NodeFailure& f) {
    rendezvous_.failed(id, last[id].attempt, f, now_);
    collect();
  }
  void looks(const AgentId& id, const std::vector<RankState>& ranks) {
    rendezvous_.looked(id, last[id].attempt, ranks, now_);
    collect();
  }
  void ends(const AgentId& id, const NodeEnd& end = {}) {
    rendezvous_.ended(id, last[id].attempt, end, now_);
    collect();
  }
  void leaves(const AgentId& id) {
    rendezvous_.leave(id, "its connection closed", now_);
    collect();
  }
  void later(milliseconds by) {
    now_ += by;
    rendezvous_.tick(now_);
    collect();
  }
  // A worker of `id` is killed, and the workers of all agents end.
  void crash(const AgentId& id, std::int64_t step) {
    fails(id, {Blame::killed, 137, true, id + " crashed"});
    for (const AgentId& a : rendezvous_.agents()) ends(a, {.code = 137, .begun = true, .step = step});
  }
  bool over() const { return rendezvous_.over(); }

  std::map<AgentId, Order> last;

 private:
  static RendezvousRules with_host(RendezvousRules rules) {
    rules.host = "a";
    return rules;
  }
  void collect() {
    for (auto& [id, order] : rendezvous_.take_orders()) last[id] = order;
  }
  Time now_{seconds(1000)};
  Rendezvous rendezvous_;
};

RendezvousRules nodes(int least, int most, int restarts = 3) {
  RendezvousRules r;
  r.least_nodes = least;
  r.most_nodes = most;
  r.max_restarts = restarts;
  return r;
}

TEST(Rendezvous, StartsWhenAllAreHere) {
  Job job(nodes(3, 3));
  job.join("b", -1, 2);
  EXPECT_EQ(job.last["b"].kind, Kind::wait);
  job.join("a", -1, 3);
  EXPECT_EQ(job.last["b"].text, "2 of 3 nodes are here (host-a as node 0, host-b as node 1); node 2 is missing");
  job.join("c", 1);
  const auto place = [&](const AgentId& id) {
    const Order& o = job.last[id];
    EXPECT_EQ(o.kind, Kind::start);
    EXPECT_EQ(o.world, 6);
    EXPECT_EQ(o.nodes, 3);
    return std::pair(o.node_rank, o.first_rank);
  };
  EXPECT_EQ(place("a"), std::pair(0, 0)) << "the host of the endpoint";
  EXPECT_EQ(place("c"), std::pair(1, 3)) << "as it asked for";
  EXPECT_EQ(place("b"), std::pair(2, 4));
  for (const char* id : {"a", "b", "c"}) job.ends(id);
  EXPECT_EQ(job.last["c"].kind, Kind::end);
  EXPECT_EQ(job.last["c"].code, 0);
}

TEST(Rendezvous, RefusesWhoCannotHaveItsPlace) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b", 0);
  EXPECT_EQ(job.last["b"].kind, Kind::end);
  EXPECT_EQ(job.last["b"].code, kExitError);
  job.join("c", 2);
  EXPECT_EQ(job.last["c"].text, "--node-rank 2 does not exist among 2 nodes");
  EXPECT_FALSE(job.over());
}

TEST(Rendezvous, AFailureStopsAllAndStartsAllAgain) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("b", {Blame::killed, 137, true, "rank 1 was killed"});
  EXPECT_EQ(job.last["a"].kind, Kind::stop);
  EXPECT_EQ(job.last["a"].text, "rank 1 was killed");
  job.ends("b", {.code = 137, .begun = true, .step = 5});
  EXPECT_EQ(job.last["b"].kind, Kind::stop) << "not before all have ended";
  job.ends("a", {.code = 143, .step = 5});
  for (const char* id : {"a", "b"}) {
    EXPECT_EQ(job.last[id].kind, Kind::start);
    EXPECT_EQ(job.last[id].attempt, 1);
    EXPECT_TRUE(job.last[id].begun);
  }
  job.fails("a", {Blame::killed, 137, true, "late"});
  EXPECT_EQ(job.last["b"].kind, Kind::stop);
}

RankState waiting(int rank) {
  return {.rank = rank, .phase = "reduce", .groups = {{"dp", 0, 2, 5, 5, 4, "all_reduce", "x.cpp:1", false, {}}}};
}

// The verdict is about the ranks of all nodes, whichever agent noticed.
TEST(Rendezvous, AHangIsJudgedWithAllNodes) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::hung, 1, true, "rank 0 hangs", {waiting(0)}});
  EXPECT_EQ(job.last["b"].kind, Kind::look);
  job.looks("b",
            {{.rank = 1, .node = 1, .pid = 7, .host = "hb", .step = 3, .phase = "forward", .groups = {{"dp", 0, 2}}}});
  for (const char* id : {"a", "b"}) {
    EXPECT_EQ(job.last[id].kind, Kind::stop);
    EXPECT_EQ(job.last[id].text.find("rank 1 on hb (pid 7, node 1) hangs: rank 0 waits in #5 of dp"), 0u)
        << job.last[id].text;
  }
  for (const char* id : {"a", "b"}) job.ends(id, {.code = 1, .begun = true, .step = 3});
  EXPECT_EQ(job.last["a"].kind, Kind::start) << "like any failure";
  job.fails("b", {Blame::hung, 1, true, "rank 1 hangs", {waiting(1)}});
  EXPECT_EQ(job.last["a"].kind, Kind::look) << "in the next attempt again";
}

TEST(Rendezvous, AHangIsJudgedWithoutANodeThatIsCutOff) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::hung, 1, true, "rank 0 hangs", {waiting(0)}});
  job.later(milliseconds(500));
  EXPECT_EQ(job.last["a"].kind, Kind::look);
  job.later(milliseconds(600));
  EXPECT_EQ(job.last["a"].kind, Kind::stop);
  EXPECT_NE(job.last["a"].text.find("nothing was heard of rank 1"), std::string::npos) << job.last["a"].text;
}

TEST(Rendezvous, ADeadRankIsTheCauseOfAHang) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::hung, 1, true, "rank 0 hangs", {waiting(0)}});
  job.fails("b", {Blame::killed, 137, true, "rank 1 was killed"});
  EXPECT_EQ(job.last["a"].text, "rank 1 was killed");
}

TEST(Rendezvous, MessagesKeepWhereRanksAre) {
  RankState s{.rank = 3,
              .node = 1,
              .pid = 71,
              .host = "b",
              .step = 9,
              .phase = "data",
              .silent = 1.5,
              .stopped = true,
              .last = "#4 of dp",
              .groups = {{"dp", 0, 4, 6, 5, 4, "barrier", "x.cpp:1", true, {{4, "a", "y.cpp:2"}}}}};
  const Report sent{.from = "b", .attempt = 2, .ranks = {{s}}};
  EXPECT_EQ(encode(decode_report(encode(sent))), encode(sent));
  const auto back = decode_report(encode(sent)).ranks.value().at(0);
  EXPECT_EQ(back.groups.at(0).recent.at(0).text, "a");
  EXPECT_EQ(back.groups.at(0).done, 4);
  EXPECT_TRUE(back.groups.at(0).pairwise && back.stopped);
}

TEST(Rendezvous, WhatIsSaidOfAnEarlierAttemptDoesNotCount) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  const Order first = job.last["b"];
  job.crash("b", 1);
  const Order second = job.last["b"];
  ASSERT_EQ(second.attempt, 1);
  job.last["b"] = first;
  job.fails("b", {Blame::killed, 137, true, "old"});
  job.last["b"] = first;
  job.ends("b");
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_FALSE(job.over());
}

TEST(Rendezvous, TheCauseIsNamedThoughThoseWhoLostItAreFaster) {
  Job job(nodes(3, 3, 0));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  job.fails("a", {Blame::lost_peer, kExitPeerLost, true, "a lost somebody"});
  job.fails("b", {Blame::failed, 1, true, "b failed"});
  EXPECT_EQ(job.last["c"].text, "b failed");
  for (const char* id : {"a", "b", "c"}) job.ends(id, {.code = 1});
  EXPECT_EQ(job.last["c"].kind, Kind::end);
  EXPECT_EQ(job.last["c"].text, "b failed");
  EXPECT_EQ(job.last["c"].code, 1);
}

TEST(Rendezvous, LostPeersAloneAreJudgedInTime) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::lost_peer, kExitPeerLost, true, "a lost somebody"});
  EXPECT_EQ(job.last["b"].kind, Kind::start);
  job.later(seconds(2));
  EXPECT_EQ(job.last["b"].kind, Kind::stop);
}

TEST(Rendezvous, ASignalEndsIt) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.ends("b", {.code = kExitInterrupted, .stopped = true});
  job.fails("a", {Blame::lost_peer, kExitPeerLost, true, "a lost somebody"});
  job.ends("a", {.code = kExitPeerLost});
  EXPECT_EQ(job.last["a"].kind, Kind::end);
  EXPECT_EQ(job.last["a"].code, kExitInterrupted);
}

TEST(Rendezvous, ALostNodeIsWaitedForAndItsSuccessorHasItsPlace) {
  Job job(nodes(3, 3));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  job.leaves("b");
  EXPECT_EQ(job.last["c"].kind, Kind::stop);
  EXPECT_EQ(job.last["c"].text, "the agent of node 1 (host-b) is lost: its connection closed");
  for (const char* id : {"a", "c"}) job.ends(id, {.code = 143, .step = 3});
  EXPECT_EQ(job.last["c"].kind, Kind::wait);
  job.later(seconds(599));
  EXPECT_FALSE(job.over());
  job.join("d");
  EXPECT_EQ(job.last["d"].kind, Kind::start);
  EXPECT_EQ(job.last["d"].node_rank, 1);
  EXPECT_EQ(job.last["c"].node_rank, 2);
}

TEST(Rendezvous, ALostNodeThatDoesNotReturnEndsIt) {
  Job job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.leaves("b");
  job.ends("a", {.code = 143});
  job.later(seconds(601));
  EXPECT_EQ(job.last["a"].kind, Kind::end);
  EXPECT_EQ(job.last["a"].code, kExitError);
  EXPECT_NE(job.last["a"].text.find("node 1 is missing"), std::string::npos) << job.last["a"].text;
}

TEST(Rendezvous, ASpareWaitsAndTakesOver) {
  Job job(nodes(2, 2));
  for (const char* id : {"a", "b", "spare"}) job.join(id);
  EXPECT_EQ(job.last["spare"].text, "the job runs with 2 of 2 nodes; this one waits to replace another");
  job.leaves("b");
  job.ends("a", {.code = 143});
  EXPECT_EQ(job.last["spare"].kind, Kind::start);
  EXPECT_EQ(job.last["spare"].node_rank, 1);
}

TEST(Rendezvous, FewerNodesWhereThatIsAllowed) {
  Job job(nodes(1, 3));
  job.join("a");
  job.join("b");
  EXPECT_EQ(job.last["a"].kind, Kind::wait);
  job.later(seconds(31));
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 2);
  job.leaves("b");
  job.ends("a", {.code = 143});
  job.later(milliseconds(1900));
  EXPECT_EQ(job.last["a"].kind, Kind::wait);
  job.later(milliseconds(200));
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 1);
  job.join("c");
  EXPECT_EQ(job.last["c"].text, "the job runs with 1 of 3 nodes; this one waits to take part after the next failure");
  job.crash("a", 7);
  EXPECT_EQ(job.last["c"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 2);
}

// Nobody is waited for who was not there before.
TEST(Rendezvous, ADeadWorkerOfFewerNodesCostsNoWaiting) {
  Job job(nodes(1, 3));
  job.join("a");
  job.join("b");
  job.later(seconds(31));
  job.crash("b", 7);
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].attempt, 1);
  EXPECT_EQ(job.last["a"].world, 2);
}

TEST(Rendezvous, ANodeThatReturnsInTimeIsTakenAtOnce) {
  Job job(nodes(1, 3));
  job.join("a");
  job.join("b");
  job.later(seconds(31));
  job.leaves("b");
  job.ends("a", {.code = 143});
  job.later(seconds(1));
  job.join("b");
  EXPECT_EQ(job.last["b"].kind, Kind::start);
  EXPECT_EQ(job.last["b"].node_rank, 1);
}

TEST(Messages, ComeBackAsTheyWere) {
  const Report join{.from = "x", .offer = NodeOffer{"h\xff", 3, 8}};
  EXPECT_EQ(decode_report(encode(join)).offer->workers, 8);
  const Report failed{.from = "x", .attempt = 4, .failure = NodeFailure{Blame::killed, 137, false, "t"}};
  EXPECT_EQ(decode_report(encode(failed)).failure->blame, Blame::killed);
  EXPECT_FALSE(decode_report(encode(failed)).failure->curable);
  const Report end{.from = "x", .attempt = 4, .end = NodeEnd{75, true, true, 1LL << 40}};
  EXPECT_EQ(decode_report(encode(end)).end->step, 1LL << 40);
  const Order order{.kind = Kind::start, .node_rank = 1, .first_rank = 7, .store = {"::1", 4711}, .leader = "l"};
  EXPECT_EQ(decode_order(encode(order)).store, order.store);
  EXPECT_EQ(decode_order(encode(order)).first_rank, 7);
  for (const char* text : {"", "{}", "[]", "{\"from\": 3}", "{\"from\": \"x\", \"attempt\": \"y\"}"}) {
    EXPECT_THROW(decode_report(text), Error) << text;
    EXPECT_THROW(decode_order(text), Error) << text;
  }
}

// Random schedules: agents come, fail, hang, are lost and come back, while their reports are on the way for some time.
// A link that is cut holds back reports and orders. It heals, or the leader gives the node up, whose workers go on
// until it gives up, too. The clock goes on until the job is over, which it must be.
class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : seed_(seed) {
    rules_.host = "0";
    rules_.most_nodes = 1 + draw(5);
    rules_.least_nodes = 1 + draw(rules_.most_nodes);
    rules_.max_restarts = draw(4);
    rendezvous_.emplace(rules_, now_);
    for (int i = 0; i < rules_.most_nodes + draw(2); ++i) arrive();
  }

  void run() {
    for (int turn = 0; turn < 20'000 && !(rendezvous_->over() && everybody_ended()); ++turn) {
      now_ += milliseconds(1 + draw(turn < 200 ? 2'000 : 20'000));
      heal();
      deliver();
      if (turn < 200) disturb();
      rendezvous_->tick(now_);
      obey();
      check();
    }
    EXPECT_TRUE(rendezvous_->over());
    EXPECT_TRUE(everybody_ended());
  }

 private:
  struct Node {
    int workers = 1;
    bool alive = true, over = false;
    bool joined = false, given_up = false;  // the leader knows it, or knows that it is lost
    bool cut_off = false;                   // until one of these:
    Time heals{}, leader_gives_up{}, gives_up{};
    int running = -1;  // attempt
    bool stopping = false;
    Order order;               // to start
    std::vector<Order> inbox;  // on their way to it
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
  // Reports of one agent stay in their order.
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
        if (r.ranks) rendezvous_->looked(r.from, r.attempt, *r.ranks, now_);
        if (r.failure) rendezvous_->failed(r.from, r.attempt, *r.failure, now_);
        if (r.end) rendezvous_->ended(r.from, r.attempt, *r.end, now_);
      }
    }
    sent_.insert(sent_.end(), rest.begin(), rest.end());
  }
  void end_workers(const AgentId& id, Node& node, int code, bool stopped = false) {
    send({.from = id, .attempt = node.running, .end = NodeEnd{code, stopped, true, draw(50)}});
    node.running = -1;
    node.stopping = false;
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
      ranks.push_back(waiting(node.order.first_rank + i));
      ranks.back().stopped = draw(10) == 0;
      ranks.back().groups.front().size = node.order.world;
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
        if (!node.given_up) rendezvous_->leave(id, "it was killed", now_);
      } else if (what == 1 && node.running >= 0 && !node.stopping) {
        const auto blame = static_cast<Blame>(draw(4));
        NodeFailure failure{blame, 9, draw(20) > 0, "it failed"};
        if (blame == Blame::hung) failure.ranks = ranks_of(node);
        send({.from = id, .attempt = node.running, .failure = failure});
        node.stopping = blame != Blame::hung;  // which is for the leader to judge
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
      node.running = newest_of_[id] = order.attempt;
      node.stopping = false;
      node.order = order;
    }
    if (order.kind == Kind::look && node.running == order.attempt && draw(5) > 0)
      send({.from = id, .attempt = node.running, .ranks = ranks_of(node)});
    if (order.kind == Kind::stop && node.running == order.attempt) node.stopping = true;
    if (order.kind == Kind::end) node.over = true, node.stopping = true;
  }
  void collect() {
    for (auto& [id, order] : rendezvous_->take_orders()) {
      EXPECT_FALSE(nodes_[id].given_up) << "who is given up has no part in what follows";
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
  // Nobody runs an attempt while somebody runs another; the places of an attempt fit together. Only who was given up
  // and does not know it may still run, and has lost the right to save (checkpoint/writer_token.h).
  void check() {
    std::map<int, int> places;  // node rank: first rank
    int attempt = -1, nodes = 0, world = 0;
    for (const auto& [id, node] : nodes_) {
      if (!node.alive || node.running < 0 || node.given_up) continue;
      EXPECT_TRUE(attempt < 0 || attempt == node.running) << "attempts " << attempt << " and " << node.running;
      attempt = node.running;
      EXPECT_TRUE(places.emplace(node.order.node_rank, node.order.first_rank).second) << "one place for two nodes";
      EXPECT_LT(node.order.first_rank, node.order.world);
      EXPECT_TRUE(nodes == 0 || (nodes == node.order.nodes && world == node.order.world));
      nodes = node.order.nodes, world = node.order.world;
      EXPECT_GE(nodes, rules_.least_nodes);
      EXPECT_LE(nodes, rules_.most_nodes);
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
};

// RING_SCHEDULES: how many.
TEST(SlowRendezvous, AnyScheduleHasOneAttemptAtATimeAndAnEnd) {
  const char* const asked = std::getenv("RING_SCHEDULES");
  const std::uint64_t schedules = asked ? std::stoull(asked) : 100'000;
  for (std::uint64_t seed = 0; seed < schedules && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Schedule(seed).run();
  }
}

}  // namespace
}  // namespace ring
