// The state machine of the rendezvous, without sockets and on a simulated clock.

#include "launcher/rendezvous.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/exit_code.h"
#include "launcher/messages.h"

namespace ring {
namespace {

using Time = Rendezvous::Time;
using Kind = Order::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Agents of one worker each (unless join() says more), and the last order that each got.
class FakeAgents {
 public:
  explicit FakeAgents(RendezvousRules rules) : rendezvous_(with_host(std::move(rules)), now_) {}

  void join(const AgentId& id, int node_rank = -1, int workers = 1) {
    rendezvous_.join(id, {"host-" + id, node_rank, workers}, now_);
    collect();
  }
  void fails(const AgentId& id, const NodeFailure& f) {
    rendezvous_.on_failure(id, last[id].attempt, f, now_);
    collect();
  }
  void looks(const AgentId& id, const std::vector<RankState>& ranks) {
    rendezvous_.on_states(id, last[id].attempt, ranks, now_);
    collect();
  }
  void ends(const AgentId& id, const NodeEnd& end = {}) {
    rendezvous_.on_end(id, last[id].attempt, end, now_);
    collect();
  }
  void leaves(const AgentId& id, bool closed = false) {
    rendezvous_.leave(id, "its connection closed", now_, closed);
    collect();
  }
  void advance(milliseconds by) {
    now_ += by;
    rendezvous_.tick(now_);
    collect();
  }
  // Kills a worker of `id`, after which the workers of all agents end.
  void crash(const AgentId& id, std::int64_t step) {
    fails(id, {Blame::killed, 137, true, id + " crashed"});
    for (const AgentId& a : rendezvous_.agents()) ends(a, {.code = 137, .begun = true, .step = step});
  }
  bool over() const { return rendezvous_.is_over(); }

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
  r.min_nodes = least;
  r.max_nodes = most;
  r.max_restarts = restarts;
  return r;
}

TEST(Rendezvous, StartsWhenAllNodesHaveJoined) {
  FakeAgents job(nodes(3, 3));
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

TEST(Rendezvous, RefusesANodeWhoseRankIsTaken) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b", 0);
  EXPECT_EQ(job.last["b"].kind, Kind::end);
  EXPECT_EQ(job.last["b"].code, kExitError);
  job.join("c", 2);
  EXPECT_EQ(job.last["c"].text, "--node-rank 2 does not exist among 2 nodes");
  EXPECT_FALSE(job.over());
}

TEST(Rendezvous, AFailureStopsAndRestartsAllNodes) {
  FakeAgents job(nodes(2, 2));
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

// The verdict considers the ranks of all nodes, whichever agent noticed the hang.
TEST(Rendezvous, AHangIsJudgedFromAllNodes) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::hung, 1, true, "rank 0 hangs", {waiting(0)}});
  EXPECT_EQ(job.last["b"].kind, Kind::report_states);
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
  EXPECT_EQ(job.last["a"].kind, Kind::report_states) << "in the next attempt again";
}

TEST(Rendezvous, AHangIsJudgedWithoutANodeThatIsCutOff) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::hung, 1, true, "rank 0 hangs", {waiting(0)}});
  job.advance(milliseconds(500));
  EXPECT_EQ(job.last["a"].kind, Kind::report_states);
  job.advance(milliseconds(600));
  EXPECT_EQ(job.last["a"].kind, Kind::stop);
  EXPECT_NE(job.last["a"].text.find("came from rank 1"), std::string::npos) << job.last["a"].text;
}

TEST(Rendezvous, ADeadRankIsTheCauseOfAHang) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::hung, 1, true, "rank 0 hangs", {waiting(0)}});
  job.fails("b", {Blame::killed, 137, true, "rank 1 was killed"});
  EXPECT_EQ(job.last["a"].text, "rank 1 was killed");
}

TEST(Rendezvous, MessagesKeepTheStatesOfRanks) {
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

TEST(Rendezvous, ReportsOfAnEarlierAttemptAreIgnored) {
  FakeAgents job(nodes(2, 2));
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

TEST(Rendezvous, TheCauseIsNamedEvenIfItsPeersReportFirst) {
  FakeAgents job(nodes(3, 3, 0));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  job.fails("a", {Blame::lost_peer, kExitPeerLost, true, "a lost somebody"});
  job.fails("b", {Blame::failed, 1, true, "b failed"});
  EXPECT_EQ(job.last["c"].text, "b failed");
  for (const char* id : {"a", "b", "c"}) job.ends(id, {.code = 1});
  EXPECT_EQ(job.last["c"].kind, Kind::end);
  EXPECT_EQ(job.last["c"].text, "b failed");
  EXPECT_EQ(job.last["c"].code, 1);
}

TEST(Rendezvous, LostPeersAloneStopTheJobAfterTheBlameTime) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.fails("a", {Blame::lost_peer, kExitPeerLost, true, "a lost somebody"});
  EXPECT_EQ(job.last["b"].kind, Kind::start);
  job.advance(seconds(2));
  EXPECT_EQ(job.last["b"].kind, Kind::stop);
}

NodeFailure killed_worker() { return {.blame = Blame::killed, .code = 137, .text = "killed", .replaceable = true}; }
const NodeEnd kStays{.begun = true, .step = 5, .stay = true};

TEST(Rendezvous, SurvivorsOfAllNodesStayIfASingleWorkerIsLost) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b", -1, 2);
  job.fails("b", killed_worker());
  EXPECT_TRUE(job.last["a"].kind == Kind::stop && job.last["a"].may_stay);
  for (const char* id : {"b", "a"}) job.ends(id, kStays);
  for (const char* id : {"a", "b"}) EXPECT_TRUE(job.last[id].kind == Kind::start && job.last[id].may_stay) << id;
  EXPECT_EQ(job.last["a"].replacements, 1);
  for (const char* id : {"a", "b"}) job.ends(id, {.code = 143, .step = 9});
  EXPECT_EQ(job.last["a"].kind, Kind::end) << "nothing failed in the second attempt";
}

TEST(Rendezvous, AllWorkersAreRestartedInCaseOfDoubt) {
  const auto started_anew = [](FakeAgents& job) {
    const Order& order = job.last["a"];
    return order.attempt == 1 && order.replacements == 0 && !order.may_stay && !job.last["b"].may_stay;
  };
  {
    FakeAgents job(nodes(2, 2));
    for (const char* id : {"a", "b"}) job.join(id, -1, 2);
    job.fails("b", killed_worker());
    job.fails("a", killed_worker());
    for (const char* id : {"a", "b"}) job.ends(id, kStays);
    EXPECT_TRUE(started_anew(job)) << "a second worker was lost";
  }
  {
    FakeAgents job(nodes(2, 2));
    for (const char* id : {"a", "b"}) job.join(id, -1, 2);
    job.fails("b", killed_worker());
    job.ends("b", kStays);
    job.ends("a", {.code = 83, .begun = true, .step = 5});
    EXPECT_TRUE(started_anew(job)) << "a node could not keep its workers";
  }
  FakeAgents job(nodes(2, 2));
  for (const char* id : {"a", "b"}) job.join(id, -1, 2);
  job.fails("b", {Blame::failed, 1, true, "b failed"});
  EXPECT_FALSE(job.last["a"].may_stay) << "the worker ended by itself";
  for (const char* id : {"a", "b"}) job.ends(id, kStays);
  EXPECT_TRUE(started_anew(job));
}

TEST(Rendezvous, SurvivorsStayIfANodeIsLost) {
  FakeAgents job(nodes(2, 3));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  job.leaves("b", true);
  EXPECT_TRUE(job.last["c"].kind == Kind::stop && job.last["c"].may_stay);
  for (const char* id : {"a", "c"}) job.ends(id, kStays);
  EXPECT_TRUE(job.last["c"].kind == Kind::wait && job.last["c"].may_stay);
  job.advance(seconds(3));
  for (const char* id : {"a", "c"}) EXPECT_TRUE(job.last[id].kind == Kind::start && job.last[id].may_stay) << id;
  EXPECT_EQ(job.last["c"].first_rank, 1) << "a survivor may get a new rank";
  job.join("d");
  EXPECT_TRUE(job.last["d"].kind == Kind::wait && !job.last["d"].may_stay) << "its survivors need not wait";
  job.fails("c", killed_worker());
  for (const char* id : {"a", "c"}) job.ends(id, kStays);
  EXPECT_TRUE(job.last["a"].may_stay && job.last["c"].may_stay);
  EXPECT_TRUE(job.last["d"].kind == Kind::start && !job.last["d"].may_stay) << "a new node has no survivors";
}

TEST(Rendezvous, AllWorkersAreRestartedIfANodeFallsSilent) {
  FakeAgents job(nodes(2, 2));
  for (const char* id : {"a", "b"}) job.join(id);
  job.leaves("b");
  EXPECT_TRUE(job.last["a"].kind == Kind::stop && !job.last["a"].may_stay) << "its workers may be alive";
}

TEST(Rendezvous, ASignalEndsTheJob) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.ends("b", {.code = kExitInterrupted, .stopped = true});
  job.fails("a", {Blame::lost_peer, kExitPeerLost, true, "a lost somebody"});
  job.ends("a", {.code = kExitPeerLost});
  EXPECT_EQ(job.last["a"].kind, Kind::end);
  EXPECT_EQ(job.last["a"].code, kExitInterrupted);
}

TEST(Rendezvous, ALostNodeIsReplacedByItsSuccessor) {
  FakeAgents job(nodes(3, 3));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  job.leaves("b");
  EXPECT_EQ(job.last["c"].kind, Kind::stop);
  EXPECT_EQ(job.last["c"].text, "the agent of node 1 (host-b) is lost: its connection closed");
  for (const char* id : {"a", "c"}) job.ends(id, {.code = 143, .step = 3});
  EXPECT_EQ(job.last["c"].kind, Kind::wait);
  job.advance(seconds(599));
  EXPECT_FALSE(job.over());
  job.join("d");
  EXPECT_EQ(job.last["d"].kind, Kind::start);
  EXPECT_EQ(job.last["d"].node_rank, 1);
  EXPECT_EQ(job.last["c"].node_rank, 2);
}

TEST(Rendezvous, ALostNodeThatDoesNotReturnEndsTheJob) {
  FakeAgents job(nodes(2, 2));
  job.join("a");
  job.join("b");
  job.leaves("b");
  job.ends("a", {.code = 143});
  job.advance(seconds(601));
  EXPECT_EQ(job.last["a"].kind, Kind::end);
  EXPECT_EQ(job.last["a"].code, kExitError);
  EXPECT_NE(job.last["a"].text.find("node 1 is missing"), std::string::npos) << job.last["a"].text;
}

TEST(Rendezvous, ASpareWaitsAndTakesOver) {
  FakeAgents job(nodes(2, 2));
  for (const char* id : {"a", "b", "spare"}) job.join(id);
  EXPECT_EQ(job.last["spare"].text, "the job runs with 2 of 2 nodes; this one waits to replace a lost node");
  job.leaves("b");
  job.ends("a", {.code = 143});
  EXPECT_EQ(job.last["spare"].kind, Kind::start);
  EXPECT_EQ(job.last["spare"].node_rank, 1);
}

TEST(Rendezvous, FewerNodesRunIfTheRulesAllowIt) {
  FakeAgents job(nodes(1, 3));
  job.join("a");
  job.join("b");
  EXPECT_EQ(job.last["a"].kind, Kind::wait);
  job.advance(seconds(31));
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 2);
  job.leaves("b");
  job.ends("a", {.code = 143});
  job.advance(milliseconds(1900));
  EXPECT_EQ(job.last["a"].kind, Kind::wait);
  job.advance(milliseconds(200));
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 1);
  job.join("c");
  EXPECT_EQ(job.last["c"].text, "the job runs with 1 of 3 nodes; this one waits to join after the next failure");
  job.crash("a", 7);
  EXPECT_EQ(job.last["c"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 2);
}

// The rendezvous does not wait for nodes that were not part of the job before.
TEST(Rendezvous, ADeadWorkerOfFewerNodesCausesNoWait) {
  FakeAgents job(nodes(1, 3));
  job.join("a");
  job.join("b");
  job.advance(seconds(31));
  job.crash("b", 7);
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].attempt, 1);
  EXPECT_EQ(job.last["a"].world, 2);
}

TEST(Rendezvous, ANodeThatReturnsInTimeIsUsedAtOnce) {
  FakeAgents job(nodes(1, 3));
  job.join("a");
  job.join("b");
  job.advance(seconds(31));
  job.leaves("b");
  job.ends("a", {.code = 143});
  job.advance(seconds(1));
  job.join("b");
  EXPECT_EQ(job.last["b"].kind, Kind::start);
  EXPECT_EQ(job.last["b"].node_rank, 1);
}

// The agents report that the settings do not fit their workers. `begun`: the workers had connected before.
void report_misfit(FakeAgents& job, const std::vector<AgentId>& agents, bool begun) {
  NodeFailure f{Blame::failed, 1, begun, "parallel.cp: 2 does not divide"};
  f.misfit = true;
  for (const AgentId& a : agents) job.fails(a, f);
  for (const AgentId& a : agents) job.ends(a, {.code = 1, .begun = begun});
}

TEST(Rendezvous, ANumberOfNodesThatDoesNotFitIsNotRetried) {
  FakeAgents job(nodes(1, 2, 1));
  job.join("a");
  job.join("b");
  job.leaves("b");
  job.ends("a", {.code = 143, .begun = true, .step = 150});
  job.advance(milliseconds(2100));
  EXPECT_EQ(job.last["a"].world, 1);
  report_misfit(job, {"a"}, true);
  for (int i = 0; i < 100; ++i) job.advance(seconds(5));
  EXPECT_EQ(job.last["a"].kind, Kind::wait);
  EXPECT_NE(job.last["a"].text.find("node 1 is missing, without"), std::string::npos) << job.last["a"].text;
  job.join("c");
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 2);
  job.leaves("c");
  job.ends("a", {.code = 143, .begun = true, .step = 160});
  job.advance(seconds(590));
  EXPECT_EQ(job.last["a"].kind, Kind::wait) << "it is known now";
  job.advance(seconds(11));
  EXPECT_EQ(job.last["a"].kind, Kind::end);
  EXPECT_NE(job.last["a"].text.find("joined within 600 s"), std::string::npos) << job.last["a"].text;
}

// Workers know from the start which node counts do not fit. Survivors wait for a node, and keep the state.
TEST(Rendezvous, SurvivorsWaitForANodeWithoutWhichTheSettingsDoNotFit) {
  FakeAgents job(nodes(1, 2, 1));
  job.join("a");
  job.join("b");
  job.leaves("b", true);
  NodeEnd end = kStays;
  end.misfits = {1};
  job.ends("a", end);
  job.advance(seconds(100));
  EXPECT_EQ(job.last["a"].kind, Kind::wait);
  EXPECT_TRUE(job.last["a"].may_stay);
  job.join("c");
  EXPECT_EQ(job.last["a"].kind, Kind::start);
  EXPECT_EQ(job.last["a"].world, 2);
  EXPECT_TRUE(job.last["a"].may_stay);
  EXPECT_FALSE(job.last["c"].may_stay);
}

TEST(Rendezvous, FewerNodesAreUsedIfAllDoNotFit) {
  FakeAgents job(nodes(2, 3));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  report_misfit(job, {"a", "b", "c"}, false);
  EXPECT_EQ(job.last["b"].kind, Kind::start);
  EXPECT_EQ(job.last["b"].world, 2);
  EXPECT_EQ(job.last["c"].kind, Kind::wait);
  job.leaves("b");
  job.ends("a", {.code = 143, .begun = true});
  EXPECT_EQ(job.last["c"].kind, Kind::start) << "as a spare";
  EXPECT_EQ(job.last["c"].node_rank, 1);
}

TEST(Rendezvous, SettingsThatFitNoNumberOfNodesAreRefused) {
  for (const bool begun : {false, true}) {
    FakeAgents job(nodes(2, 2));
    job.join("a");
    job.join("b");
    report_misfit(job, {"a", "b"}, begun);
    EXPECT_EQ(job.last["a"].kind, Kind::end);
    EXPECT_EQ(job.last["a"].attempt, 0);
    EXPECT_EQ(job.last["a"].text, "parallel.cp: 2 does not divide");
  }
  FakeAgents job(nodes(1, 2));
  job.join("a");
  job.join("b");
  report_misfit(job, {"a", "b"}, false);
  report_misfit(job, {"a"}, false);
  EXPECT_EQ(job.last["a"].kind, Kind::end) << "neither two nor one";
}

TEST(Messages, AreDecodedUnchanged) {
  const Report join{.from = "x", .offer = NodeOffer{"h\xff", 3, 8}};
  EXPECT_EQ(decode_report(encode(join)).offer->workers, 8);
  const Report failed{.from = "x", .attempt = 4, .failure = NodeFailure{Blame::killed, 137, false, "t"}};
  EXPECT_EQ(decode_report(encode(failed)).failure->blame, Blame::killed);
  EXPECT_FALSE(decode_report(encode(failed)).failure->restartable);
  EXPECT_TRUE(decode_report(encode(Report{.from = "x", .failure = killed_worker()})).failure->replaceable);
  EXPECT_TRUE(decode_report(encode(Report{.from = "x", .end = kStays})).end->stay);
  const NodeEnd knows{.misfits = {1, 3}};
  EXPECT_EQ(decode_report(encode(Report{.from = "x", .end = knows})).end->misfits, knows.misfits);
  const Report end{.from = "x", .attempt = 4, .end = NodeEnd{75, true, true, 1LL << 40}};
  EXPECT_EQ(decode_report(encode(end)).end->step, 1LL << 40);
  const Order order{
      .kind = Kind::start, .node_rank = 1, .first_rank = 7, .may_stay = true, .store = {"::1", 4711}, .leader = "l"};
  EXPECT_EQ(decode_order(encode(order)).store, order.store);
  EXPECT_EQ(decode_order(encode(order)).first_rank, 7);
  EXPECT_TRUE(decode_order(encode(order)).may_stay);
  for (const char* text : {"", "{}", "[]", "{\"from\": 3}", "{\"from\": \"x\", \"attempt\": \"y\"}"}) {
    EXPECT_THROW(decode_report(text), Error) << text;
    EXPECT_THROW(decode_order(text), Error) << text;
  }
}

}  // namespace
}  // namespace ring
