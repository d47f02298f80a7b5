// The leader of a job is lost: choose_leader() and the rendezvous of its successors, without sockets and on a simulated
// clock.

#include "launcher/succession.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/exit_code.h"
#include "launcher/messages.h"
#include "launcher/rendezvous.h"

namespace ring {
namespace {

using Time = Rendezvous::Time;
using Kind = Order::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

RendezvousRules rules_of(const AgentId& host, int least, int most) {
  RendezvousRules r;
  r.host = host;
  r.min_nodes = least;
  r.max_nodes = most;
  r.max_restarts = 3;
  return r;
}

// The job of a lost leader "a": attempt 4 ran on these nodes.
Heritage heritage_of(const std::vector<std::string>& nodes, const std::vector<std::string>& spares = {}) {
  Heritage h{.attempt = 4, .leader = "a", .nodes = static_cast<int>(nodes.size()), .begun = true};
  for (const std::string& n : nodes) h.members.push_back({n, "host-" + n, {"10.0.0.1", 1}});
  for (const std::string& s : spares) h.members.push_back({s, "host-" + s, {"10.0.0.2", 1}});
  return h;
}

// A successor, and the last order that it sent to each agent.
class Successor {
 public:
  Successor(const Heritage& h, const AgentId& host, int least, int most, bool leader_was_silent = false)
      : heritage_(h),
        rendezvous_(rules_of(host, least, most), h, "the agent of node 0 (host-a) is lost",
                    leader_was_silent ? std::set<AgentId>{} : std::set<AgentId>{"a"}, now_) {}

  // An agent of the job joins, whose workers run the attempt. If `ended`, they have ended.
  void join(const AgentId& id, bool ended = true, const std::optional<Heritage>& own = {}) {
    NodeOffer offer{.host = "host-" + id, .process = id};
    offer.heritage = own ? *own : heritage_;
    offer.attempt = offer.heritage->attempt;
    offer.leader = offer.heritage->leader;
    rendezvous_.join(id, offer, now_);
    if (ended) ends(id, offer.attempt);
    collect();
  }
  void join_newcomer(const AgentId& id, int node_rank = -1) {
    rendezvous_.join(id, {.host = "host-" + id, .node_rank = node_rank, .process = id}, now_);
    collect();
  }
  void ends(const AgentId& id, int attempt, const NodeEnd& end = {.code = 143, .begun = true, .step = 7}) {
    rendezvous_.on_end(id, attempt, end, now_);
    collect();
  }
  void prove_ended(const AgentId& process) {
    rendezvous_.on_process_ended(process, now_);
    collect();
  }
  void advance(milliseconds by) {
    now_ += by;
    rendezvous_.tick(now_);
    collect();
  }
  std::vector<std::string> to_probe() const {
    std::vector<std::string> ids;
    for (const Member& m : rendezvous_.members_to_probe()) ids.push_back(m.process);
    return ids;
  }
  bool started(const AgentId& id) { return last[id].kind == Kind::start; }

  std::map<AgentId, Order> last;

 private:
  void collect() {
    for (auto& [id, order] : rendezvous_.take_orders()) last[id] = order;
  }
  Time now_{seconds(1000)};
  Heritage heritage_;
  Rendezvous rendezvous_;
};

TEST(Succession, TheFirstAgentThatAnswersLeads) {
  const Heritage h = heritage_of({"a", "b", "c"}, {"d"});
  std::map<AgentId, Presence> answers;
  const Probe probe = [&](const Member& m) {
    return answers.contains(m.process) ? answers[m.process] : Presence::ended;
  };
  const auto choice = [&](const AgentId& self) {
    const auto m = choose_leader(h, self, probe);
    return m ? m->process : "nobody";
  };
  answers = {{"b", Presence::alive}, {"c", Presence::alive}};
  EXPECT_EQ(choice("b"), "b");
  EXPECT_EQ(choice("c"), "b");
  EXPECT_EQ(choice("d"), "b");
  answers["a"] = Presence::alive;
  EXPECT_EQ(choice("c"), "a") << "the leader answers again";
  answers = {{"b", Presence::unknown}};
  EXPECT_EQ(choice("c"), "c");
  EXPECT_EQ(choice("d"), "d") << "a spare, after all nodes";
  EXPECT_EQ(choice("stranger"), "nobody");
}

TEST(Succession, AMajorityContinuesWithoutALeaderThatDoesNotAnswer) {
  Successor job(heritage_of({"a", "b", "c"}), "b", 1, 3);
  for (const char* id : {"b", "c"}) job.join(id, false);
  job.ends("b", 4);
  job.advance(seconds(3));
  EXPECT_FALSE(job.started("c")) << "its workers have not ended";
  job.ends("c", 4);
  job.advance(milliseconds(1900));
  EXPECT_FALSE(job.started("c")) << "the lost node may return";
  job.advance(milliseconds(200));
  ASSERT_TRUE(job.started("b") && job.started("c"));
  EXPECT_EQ(job.last["b"].node_rank, 0);
  EXPECT_EQ(job.last["c"].attempt, 5);
  EXPECT_EQ(job.last["c"].world, 2);
  EXPECT_TRUE(job.last["c"].begun);
  EXPECT_EQ(job.last["c"].text, "the agent of node 0 (host-a) is lost");
  EXPECT_EQ(job.last["c"].heritage->leader, "b");
}

// A node that reaches the successor after all others have ended may still keep its workers.
TEST(Succession, SurvivorsStayUnderTheNextLeader) {
  const NodeEnd stays{.begun = true, .step = 7, .stay = true};
  for (const bool late_stays : {true, false}) {
    Successor job(heritage_of({"a", "b", "c"}), "b", 1, 3);
    job.join("b", false);
    job.ends("b", 4, stays);
    job.join("c", false);
    job.ends("c", 4, late_stays ? stays : NodeEnd{.code = 83, .begun = true, .step = 7});
    job.advance(milliseconds(2100));
    ASSERT_TRUE(job.started("b") && job.started("c"));
    EXPECT_EQ(job.last["b"].may_stay, late_stays);
    EXPECT_EQ(job.last["c"].may_stay, late_stays);
  }
  Successor silent(heritage_of({"a", "b", "c"}), "b", 1, 3, true);
  for (const char* id : {"b", "c"}) silent.join(id, false);
  for (const char* id : {"b", "c"}) silent.ends(id, 4, stays);
  silent.advance(milliseconds(2100));
  EXPECT_TRUE(silent.started("c") && !silent.last["c"].may_stay) << "the leader may be alive";
}

// "c" has survivors of attempt 4, but attempt 5 has made steps since.
TEST(Succession, SurvivorsOfAnOlderAttemptDoNotStay) {
  const NodeEnd stays{.begun = true, .step = 7, .stay = true};
  Successor job(heritage_of({"a", "b", "c"}), "b", 1, 3);
  job.join("c", false);
  job.ends("c", 4, stays);
  Heritage newer = heritage_of({"a", "b"});
  newer.attempt = 5;
  job.join("b", false, newer);
  job.ends("b", 5, stays);
  job.prove_ended("a");
  job.advance(milliseconds(2100));
  ASSERT_TRUE(job.started("b") && job.started("c"));
  EXPECT_FALSE(job.last["c"].may_stay);
}

TEST(Succession, HalfOfTheNodesWaitForProof) {
  Successor job(heritage_of({"a", "b"}), "b", 1, 2);
  job.join("b");
  job.advance(seconds(500));
  EXPECT_EQ(job.last["b"].kind, Kind::wait);
  EXPECT_NE(job.last["b"].text.find("host-a does not answer"), std::string::npos) << job.last["b"].text;
  EXPECT_EQ(job.to_probe(), std::vector<std::string>{"a"});
  job.prove_ended("a");
  ASSERT_TRUE(job.started("b"));
  EXPECT_EQ(job.last["b"].world, 1);
}

// A leader that was silent may have continued without this agent before it ended, and may have a different successor.
TEST(Succession, WithoutProofTheJobEndsAfterJoinTimeout) {
  Successor job(heritage_of({"a", "b"}), "b", 1, 2, true);
  job.join("b");
  EXPECT_TRUE(job.to_probe().empty());
  job.prove_ended("a");
  EXPECT_FALSE(job.started("b"));
  job.advance(seconds(601));
  EXPECT_EQ(job.last["b"].kind, Kind::end);
  EXPECT_EQ(job.last["b"].code, kExitError);
}

// Whoever starts an agent with the successor's address has decided that the lost leader is gone.
TEST(Succession, ANewAgentThatWasSentHereCounts) {
  Successor job(heritage_of({"a", "b"}), "b", 2, 2);
  job.join("b");
  job.join_newcomer("new", 0);
  ASSERT_TRUE(job.started("b") && job.started("new"));
  EXPECT_EQ(job.last["b"].node_rank, 0);
  EXPECT_EQ(job.last["new"].node_rank, 1);
  EXPECT_EQ(job.last["new"].world, 2);
}

// Spares belonged to the job of the lost leader, which may go on without them.
TEST(Succession, SparesAreNoMajority) {
  Successor job(heritage_of({"a", "b"}, {"s", "t"}), "b", 1, 2);
  for (const char* id : {"b", "s", "t"}) job.join(id);
  job.advance(seconds(100));
  EXPECT_FALSE(job.started("b"));
  job.prove_ended("a");
  EXPECT_TRUE(job.started("s")) << "in place of the lost node";
}

TEST(Succession, TheNewestStateThatAnAgentKnowsIsContinued) {
  Heritage newer = heritage_of({"a", "b", "c"});
  newer.attempt = 6;
  newer.budget.used = 3;
  newer.budget.farthest = newer.budget.last = 50;
  Successor job(heritage_of({"a", "b"}), "b", 1, 3);
  job.join("b", false);
  job.join("c", true, newer);
  job.prove_ended("a");
  job.advance(seconds(3));
  EXPECT_EQ(job.last["b"].kind, Kind::end) << "no restart is left after attempt 6";
  EXPECT_NE(job.last["b"].verdict.find("3 times without progress"), std::string::npos) << job.last["b"].verdict;
}

TEST(Succession, ASignalBeforeTheLossEndsTheJob) {
  Successor job(heritage_of({"a", "b", "c"}), "b", 1, 3);
  job.join("b", false);
  job.ends("b", 4, {.code = kExitInterrupted, .stopped = true});
  job.join("c");
  EXPECT_EQ(job.last["b"].kind, Kind::end);
  EXPECT_EQ(job.last["b"].code, kExitInterrupted);
}

// A leader that lost most of its nodes must not go on alone: they may have a successor.
TEST(Succession, ALeaderWithoutItsMajorityWaitsForProof) {
  Time now{seconds(1000)};
  Rendezvous leader(rules_of("a", 1, 3), now);
  std::map<AgentId, Order> last;
  const auto collect = [&] {
    for (auto& [id, order] : leader.take_orders()) last[id] = order;
  };
  for (const char* id : {"a", "b", "c"}) leader.join(id, {.host = id}, now);
  collect();
  leader.leave("b", "no sign of life", now);
  leader.leave("c", "its connection closed", now, true);
  leader.on_end("a", 0, {.code = 143, .begun = true, .step = 7}, now);
  now += seconds(10);
  leader.tick(now);
  collect();
  EXPECT_EQ(last["a"].kind, Kind::wait);
  ASSERT_EQ(leader.members_to_probe().size(), 1u);
  EXPECT_EQ(leader.members_to_probe()[0].process, "c");
  for (const char* id : {"b", "c"}) leader.on_process_ended(id, now);
  collect();
  EXPECT_EQ(last["a"].kind, Kind::start) << "one node against one, and it led before";
  EXPECT_EQ(last["a"].world, 1);
}

// The agent ends its workers when it loses the leader, and joins before they have ended.
TEST(Succession, ALeaderWaitsForTheWorkersOfANodeThatJoinsAgain) {
  Time now{seconds(1000)};
  Rendezvous leader(rules_of("a", 2, 2), now);
  std::map<AgentId, Order> last;
  const auto collect = [&] {
    for (auto& [id, order] : leader.take_orders()) last[id] = order;
  };
  for (const char* id : {"a", "b"}) leader.join(id, {.host = id, .process = id}, now);
  leader.leave("b", "its connection closed", now, true);
  leader.join("b again", {.host = "b", .process = "b", .heritage = leader.heritage(), .attempt = 0, .leader = "a"},
              now);
  const NodeEnd end{.code = 143, .begun = true, .step = 7};
  leader.on_end("a", 0, end, now);
  collect();
  EXPECT_EQ(last["a"].kind, Kind::stop);
  leader.on_end("b again", 0, end, now);
  collect();
  EXPECT_EQ(last["b again"].kind, Kind::start);
  EXPECT_EQ(last["b again"].attempt, 1);
}

TEST(Succession, MessagesKeepTheStateOfTheJob) {
  Heritage h = heritage_of({"a", "b"}, {"s"});
  h.budget = {.used = 1, .fruitless = 2, .alike = 3, .smaller = 4, .farthest = 1LL << 40, .last = 5};
  h.misfits = {3, 7};
  h.replacements = 2;
  EXPECT_EQ(decode_heritage(encode(h)), h);
  EXPECT_THROW(decode_heritage("{}"), Error);
  const NodeOffer offer{
      .host = "b", .process = "p", .at = {"::1", 4}, .heritage_key = heritage_key(h), .attempt = 4, .leader = "a"};
  const NodeOffer back = decode_report(encode(Report{.from = "p#1", .offer = offer})).offer.value();
  EXPECT_EQ(back.heritage_key, heritage_key(h));
  EXPECT_EQ(back.at, offer.at);
  EXPECT_EQ(back.leader + back.process, "ap");
  EXPECT_EQ(decode_report(encode(Report{.from = "p", .moved = Endpoint{"x", 9}})).moved, (Endpoint{"x", 9}));
}

}  // namespace
}  // namespace ring
