// Several agents on one machine that act as nodes, with shell scripts as workers.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>
#include <map>
#include <vector>

#include "core/exit_code.h"
#include "job/liveness.h"
#include "launcher/supervisor.h"
#include "tests/launcher/scratch.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::read_file;

int free_port(const std::string& host) { return local_endpoint(listen_on({host, 0})).port; }

class DistAgents : public test::ScratchTest {
 protected:
  void TearDown() override {
    for (const auto& [name, pid] : agents_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    ScratchTest::TearDown();
  }

  LaunchOptions nodes(int n, const std::string& host = "127.0.0.1") {
    LaunchOptions o;
    o.min_nodes = o.max_nodes = n;
    if (port_ == 0) port_ = free_port(host);
    o.endpoint = Endpoint{host, port_};
    o.secret = std::string(32, 's');
    o.program = "/bin/sh";
    return o;
  }
  // Starts an agent whose workers run a script. In the script, $D is the directory of this test, $R the rank, $NODE the
  // node rank and $TRY the attempt.
  void start(const std::string& name, LaunchOptions o, const std::string& script) {
    o.command = {"-c", "D=" + dir_.string() +
                           "; R=$RINGMASTER_RANK; NODE=$RINGMASTER_NODE_RANK; TRY=$RINGMASTER_RESTART_COUNT; " +
                           script};
    const pid_t pid = fork();
    if (pid != 0) {
      agents_[name] = pid;
      return;
    }
    const int log = open((dir_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    int code = 99;
    try {
      code = launch(o);
    } catch (const std::exception& e) {
      std::cerr << e.what() << std::endl;
    }
    _exit(code);
  }
  int wait(const std::string& name) {
    int status = 0;
    waitpid(agents_.at(name), &status, 0);
    agents_.erase(name);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string log(const std::string& name) const { return read_file(dir_ / name); }
  bool says(const std::string& name, const std::string& text) const {
    return log(name).find(text) != std::string::npos;
  }
  bool is_written(const std::string& file) const { return !read_file(dir_ / file).empty(); }

  int port_ = 0;
  std::map<std::string, pid_t> agents_;
};

// The agent warns at once, since an agent on a different machine would be waited for in vain.
TEST_F(DistAgents, WarnAboutALoopbackAddress) {
  start("a", nodes(2), "true");
  EXPECT_TRUE(eventually([&] { return says("a", "127.0.0.1 is a loopback address"); })) << log("a");
  start("b", nodes(2), "true");
  for (const char* name : {"a", "b"}) EXPECT_EQ(wait(name), 0) << log(name);
}

TEST_F(DistAgents, NodesMayHaveDifferentNumbersOfWorkers) {
  const std::string script =
      "echo $RINGMASTER_RANK/$RINGMASTER_WORLD $RINGMASTER_LOCAL_RANK/$RINGMASTER_LOCAL_WORLD $NODE/$RINGMASTER_NODES "
      "> $D/place$R";
  LaunchOptions one = nodes(2), two = nodes(2);
  two.processes = 2;
  start("a", one, script);
  ASSERT_TRUE(eventually([&] { return says("a", "1 of 2 nodes is here"); })) << log("a");
  start("b", two, script);
  EXPECT_EQ(wait("a"), 0) << log("a");
  EXPECT_EQ(wait("b"), 0) << log("b");
  EXPECT_EQ(read_file(dir_ / "place0"), "0/3 0/1 0/2\n");
  EXPECT_EQ(read_file(dir_ / "place1"), "1/3 0/2 1/2\n");
  EXPECT_EQ(read_file(dir_ / "place2"), "2/3 1/2 1/2\n");
  EXPECT_TRUE(says("a", "node 1 is missing")) << log("a");
}

TEST_F(DistAgents, MeetOverIPv6WithGivenRanks) {
  try {
    listen_on({"::1", 0});
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  for (const int rank : {2, 1, 0}) {
    LaunchOptions o = nodes(3, "::1");
    o.node_rank = rank;
    start("n" + std::to_string(rank), o, "echo $R $RINGMASTER_STORE > $D/node$NODE");
  }
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_EQ(wait(str("n", rank)), 0) << log(str("n", rank));
    EXPECT_EQ(read_file(dir_ / str("node", rank)).find(str(rank, " [::1]:")), 0u);
  }
}

// The port is taken at first, as if by a connection that then ends.
TEST_F(DistAgents, TheLeaderWaitsForAFreePort) {
  const Endpoint at{"127.0.0.1", free_port("127.0.0.1")};
  const pid_t other = fork();
  if (other == 0) {
    const Fd taken = listen_on(at);
    usleep(700'000);
    _exit(0);
  }
  for (bool there = false; !there;) try {
      there = static_cast<bool>(connect_to(at, AwakeClock::now() + std::chrono::seconds(1)));
    } catch (const Error&) {
      usleep(1'000);
    }
  port_ = at.port;
  for (const char* name : {"a", "b"}) start(name, nodes(2), "true");
  for (const char* name : {"a", "b"}) EXPECT_EQ(wait(name), 0) << log(name);
  waitpid(other, nullptr, 0);
}

// A name may have several addresses: the leader listens at all of them.
TEST_F(DistAgents, MeetUnderAHostName) {
  try {
    port_ = free_port(host_name());
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  for (const char* name : {"a", "b"}) start(name, nodes(2, host_name()), "echo $RINGMASTER_STORE > $D/node$NODE");
  for (const char* name : {"a", "b"}) EXPECT_EQ(wait(name), 0) << log(name);
  for (const char* file : {"node0", "node1"}) EXPECT_EQ(read_file(dir_ / file).find(host_name() + ":"), 0u);
}

// The workers' environment, which any program may print, contains neither the secret nor values derived from it.
TEST_F(DistAgents, WorkersDoNotInheritTheSecret) {
  setenv("RINGMASTER_SECRET", std::string(32, 's').c_str(), 1);
  for (const char* name : {"a", "b"}) start(name, nodes(2), "env > $D/env$R");
  unsetenv("RINGMASTER_SECRET");
  for (const char* name : {"a", "b"}) EXPECT_EQ(wait(name), 0) << log(name);
  for (const char* file : {"env0", "env1"}) {
    const std::string environment = read_file(dir_ / file);
    EXPECT_NE(environment.find("RINGMASTER_PAGE="), std::string::npos);
    EXPECT_EQ(environment.find("RINGMASTER_SECRET"), std::string::npos);
    EXPECT_EQ(environment.find("RINGMASTER_COOKIE"), std::string::npos);
    EXPECT_EQ(environment.find(std::string(32, 's')), std::string::npos);
  }
}

TEST_F(DistAgents, AFailureOnOneNodeRestartsAllNodes) {
  const std::string script =
      "echo $$ > $D/up$TRY$R; [ $TRY = 1 ] && exit 0; "
      "[ $R = 1 ] && until [ -s $D/up00 ]; do sleep 0.01; done; [ $R = 1 ] && kill -9 $$; exec sleep 60";
  for (const char* name : {"a", "b"}) {
    LaunchOptions o = nodes(2);
    o.max_restarts = 3;
    start(name, o, script);
  }
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(wait(name), 0) << log(name);
    EXPECT_TRUE(says(name, "rank 1 on " + host_name() + " (pid ")) << log(name);
    EXPECT_TRUE(says(name, "killed by signal 9")) << log(name);
    EXPECT_TRUE(says(name, "starting all workers again")) << log(name);
  }
}

TEST_F(DistAgents, WithoutRestartsAllEndWithTheFirstExitCode) {
  for (const char* name : {"a", "b"})
    start(name, nodes(2), "[ $R = 1 ] || exec sleep 60; echo 'ringmaster: no such thing' >&2; exit 7");
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(wait(name), 7) << log(name);
    EXPECT_TRUE(says(name, "exited with code 7")) << log(name);
    EXPECT_TRUE(says(name, "no such thing")) << log(name);
  }
}

TEST_F(DistAgents, AWrongSecretOrJobIsRefusedAndTheRightOneMayStillJoin) {
  start("a", nodes(2), "exit 0");
  ASSERT_TRUE(eventually([&] { return says("a", "1 of 2"); })) << log("a");
  LaunchOptions wrong = nodes(2), other = nodes(2);
  wrong.secret = std::string(32, 'w');
  other.rdzv_id = "other";
  start("wrong", wrong, "exit 0");
  start("other", other, "exit 0");
  for (const char* name : {"wrong", "other"}) {
    EXPECT_EQ(wait(name), kExitError);
    EXPECT_TRUE(says(name, "has a different secret")) << log(name);
  }
  start("b", nodes(2), "exit 0");
  EXPECT_EQ(wait("a"), 0) << log("a");
  EXPECT_EQ(wait("b"), 0) << log("b");
}

TEST_F(DistAgents, APortThatIsTakenIsNamed) {
  const Fd taken = listen_on({"127.0.0.1", 0});
  port_ = local_endpoint(taken).port;
  LaunchOptions o = nodes(2);
  o.node_rank = 0;
  start("a", o, "exit 0");
  EXPECT_EQ(wait("a"), 99);
  EXPECT_TRUE(says("a", "--rdzv-endpoint: cannot listen on 127.0.0.1:" + std::to_string(port_))) << log("a");
}

TEST_F(DistAgents, AMissingNodeIsNamed) {
  LaunchOptions o = nodes(3);
  o.join_timeout = milliseconds(700);
  start("a", o, "exit 0");
  LaunchOptions last = o;
  last.node_rank = 2;
  start("c", last, "exit 0");
  EXPECT_EQ(wait("a"), kExitError);
  EXPECT_TRUE(says("a", "joined within 0.7 s: 2 of 3 nodes")) << log("a");
  EXPECT_TRUE(says("a", "node 1 is missing")) << log("a");
  EXPECT_TRUE(says("a", "127.0.0.1 is a loopback address")) << log("a");
  EXPECT_EQ(wait("c"), kExitError) << log("c");
}

TEST_F(DistAgents, ASignalEndsTheWaiting) {
  start("a", nodes(2), "exit 0");
  ASSERT_TRUE(eventually([&] { return says("a", "1 of 2"); })) << log("a");
  kill(agents_["a"], SIGTERM);
  EXPECT_EQ(wait("a"), kExitInterrupted) << log("a");
}

TEST_F(DistAgents, ALostAgentIsWaitedForAndReplaced) {
  const std::string script = "echo $$ > $D/up$TRY$NODE; [ $TRY = 1 ] || exec sleep 60";
  LaunchOptions o = nodes(2);
  o.max_restarts = 3;
  start("a", o, script);
  ASSERT_TRUE(eventually([&] { return says("a", "1 of 2"); })) << log("a");
  start("b", o, script);
  ASSERT_TRUE(eventually([&] { return is_written("up00") && is_written("up01"); })) << log("a");
  kill(agents_["b"], SIGKILL);
  EXPECT_EQ(wait("b"), -SIGKILL);
  ASSERT_TRUE(eventually([&] { return says("a", "node 1 (" + host_name() + ") is lost: its connection closed"); }))
      << log("a");
  start("again", o, script);
  EXPECT_EQ(wait("again"), 0) << log("again");
  EXPECT_EQ(wait("a"), 0) << log("a");
  EXPECT_TRUE(is_written("up11"));
}

// Agents of which the first leads the job and the others are nodes 1, 2, ... The workers of attempt `last` end, all
// earlier ones run until they are ended.
class DistSuccessors : public DistAgents {
 protected:
  void start_nodes(const LaunchOptions& o, const std::vector<std::string>& names, int last) {
    options_ = o;
    options_.max_restarts = 3;
    last_ = last;
    for (std::size_t i = 0; i < names.size(); ++i) {
      start_node(names[i]);
      const std::string here = str(i + 1, " of ", o.max_nodes, " nodes");
      if (i + 1 == static_cast<std::size_t>(o.max_nodes)) return;
      ASSERT_TRUE(eventually([&] { return says(names[0], here); })) << log(names[0]);
    }
  }
  void start_node(const std::string& name) {
    start(name, options_, str("echo $$ > $D/up$TRY$NODE; [ $TRY = ", last_, " ] || exec sleep 60"));
  }
  bool runs(int attempt, int nodes) {
    return eventually(
        [&] {
          for (int n = 0; n < nodes; ++n)
            if (!is_written(str("up", attempt, n))) return false;
          return true;
        },
        20);
  }
  void lose(const std::string& name) {
    kill(agents_.at(name), SIGKILL);
    EXPECT_EQ(wait(name), -SIGKILL);
  }
  // Expects that these agents end the job without an error.
  void expect_success(const std::vector<std::string>& names) {
    for (const std::string& name : names) EXPECT_EQ(wait(name), 0) << log(name);
  }
  LaunchOptions options_;
  int last_ = 0;
};

TEST_F(DistSuccessors, TheOtherNodesContinueWithoutTheLeader) {
  LaunchOptions o = nodes(3);
  o.min_nodes = 2;
  start_nodes(o, {"a", "b", "c"}, 1);
  ASSERT_TRUE(runs(0, 3)) << log("a");
  const pid_t worker = std::stoi(read_file(dir_ / "up01"));
  lose("a");
  expect_success({"b", "c"});
  EXPECT_TRUE(says("b", "takes over at 127.0.0.1:")) << log("b");
  EXPECT_FALSE(says("c", "takes over")) << log("c");
  EXPECT_TRUE(says("c", "the agent of node 0 (" + host_name() + ") at 127.0.0.1:" + std::to_string(port_))) << log("c");
  EXPECT_TRUE(runs(1, 2) && !is_written("up12"));
  EXPECT_NE(kill(worker, 0), 0) << "a worker of the lost attempt is left";
}

// Half of two nodes is no majority, but the host of the leader refuses connections, which proves that it has ended. The
// new agent knows only the endpoint, serves it like the lost leader, and is told where the job is led.
TEST_F(DistSuccessors, ANewAgentOfTheEndpointJoinsTheSuccessor) {
  start_nodes(nodes(2), {"a", "b"}, 1);
  ASSERT_TRUE(runs(0, 2)) << log("a");
  lose("a");
  ASSERT_TRUE(eventually([&] { return says("b", "1 of 2 nodes is here"); }, 20)) << log("b");
  start_node("again");
  expect_success({"b", "again"});
  EXPECT_TRUE(says("again", "the job is led by the agent at 127.0.0.1:")) << log("again");
  EXPECT_TRUE(says("b", "node 0 of 2 on ") && says("again", "node 1 of 2 on ")) << log("again");
}

// Agent "c" serves the endpoint and redirects to "b". After the loss of "b", it must redirect to "c" before the next
// attempt has started, because this attempt needs a new agent.
TEST_F(DistSuccessors, TheEndpointLeadsToASecondSuccessor) {
  start_nodes(nodes(2), {"a", "b"}, 2);
  ASSERT_TRUE(runs(0, 2)) << log("a");
  lose("a");
  ASSERT_TRUE(eventually([&] { return says("b", "1 of 2 nodes is here"); }, 20)) << log("b");
  start_node("c");
  ASSERT_TRUE(runs(1, 2)) << log("b");
  lose("b");
  ASSERT_TRUE(eventually([&] { return says("c", "1 of 2 nodes is here"); }, 20)) << log("c");
  start_node("d");
  expect_success({"c", "d"});
  EXPECT_TRUE(says("c", "takes over") && runs(2, 2)) << log("c");
}

TEST_F(DistSuccessors, LeadersMayBeLostOneAfterTheOther) {
  LaunchOptions o = nodes(3);
  o.min_nodes = 1;
  start_nodes(o, {"a", "b", "c"}, 2);
  ASSERT_TRUE(runs(0, 3)) << log("a");
  lose("a");
  ASSERT_TRUE(runs(1, 2)) << log("b");
  lose("b");
  expect_success({"c"});
  EXPECT_TRUE(says("b", "takes over") && says("c", "takes over")) << log("c");
  EXPECT_TRUE(runs(2, 1) && !is_written("up21"));
}

TEST_F(DistSuccessors, TheLeaderIsLostWhileTheJobWaitsForANode) {
  start_nodes(nodes(3), {"a", "b", "c"}, 1);
  ASSERT_TRUE(runs(0, 3)) << log("a");
  lose("c");
  ASSERT_TRUE(eventually([&] { return says("b", "2 of 3 nodes are here"); }, 20)) << log("b");
  lose("a");
  ASSERT_TRUE(eventually([&] { return says("b", "1 of 3 nodes is here"); }, 20)) << log("b");
  start_node("d");
  ASSERT_TRUE(eventually([&] { return says("b", "2 of 3 nodes are here (" + host_name() + " as node 0"); }, 20));
  start_node("e");  // meets "d" at the endpoint
  expect_success({"b", "d", "e"});
}

// Before the first attempt there is no job to continue: the agents meet again, here under one that has the endpoint's
// address, too.
TEST_F(DistSuccessors, TheLeaderIsLostWhileTheNodesMeet) {
  options_ = nodes(3);
  last_ = 0;
  start_node("a");
  ASSERT_TRUE(eventually([&] { return says("a", "1 of 3"); })) << log("a");
  start_node("b");
  ASSERT_TRUE(eventually([&] { return says("b", "2 of 3"); })) << log("b");
  lose("a");
  for (const char* name : {"c", "d"}) start_node(name);
  expect_success({"b", "c", "d"});
  EXPECT_FALSE(says("b", "takes over")) << log("b");
}

TEST(Launch, SeveralNodesNeedAnAddressAndASecret) {
  LaunchOptions o;
  o.command = {"train"};
  o.min_nodes = o.max_nodes = 2;
  const auto error = [&] {
    try {
      launch(o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error().find("--rdzv-endpoint HOST:PORT"), std::string::npos) << error();
  o.endpoint = Endpoint{"127.0.0.1", 1};
  EXPECT_NE(error().find("--make-secret FILE"), std::string::npos) << error();
  o.secret = "guess";
  EXPECT_NE(error().find("can be guessed"), std::string::npos) << error();
  o.secret = std::string(32, 's');
  o.node_rank = 2;
  EXPECT_NE(error().find("--node-rank is 2"), std::string::npos) << error();
}

}  // namespace
}  // namespace ring
