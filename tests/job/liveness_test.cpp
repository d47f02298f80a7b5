// A rank dies or stops during an operation: the other ranks end within seconds, and name it.

#include "job/liveness.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "comm/mesh/mesh.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace ring {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds_since(SteadyClock::time_point t) {
  return std::chrono::duration<double>(SteadyClock::now() - t).count();
}

CommOptions options_with(int liveness_ms) {
  CommOptions o;
  o.connect_timeout = Timeout(10'000);
  o.timeout = Timeout(60'000);
  o.liveness = milliseconds(liveness_ms);
  return o;
}

WorkerEnvironment environment(int rank, int world, const Endpoint& store) {
  WorkerEnvironment env;
  env.rank = rank;
  env.world = env.local_world = world;
  env.store = store;
  env.cookie = "liveness";
  return env;
}

// Runs all ranks as threads. Returns the message of each rank's error; "" if there was none.
std::vector<std::string> run_meshes(int world, const CommOptions& options, const std::vector<MeshAxis>& axes,
                                    const std::function<void(Mesh&)>& fn) {
  const StoreServer server({"127.0.0.1", 0}, "liveness");
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto mesh = Mesh::join(environment(rank, world, server.endpoint()), options, {.axes = axes});
        fn(*mesh);
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

// Calls all_reduce without end. Reports through the store once the operations are under way.
void all_reduce_forever(Mesh& mesh) {
  const Tensor t = Tensor::zeros({300'000}, DType::f32, Stream::cpu(1));
  for (int k = 0;; ++k) {
    mesh.all().all_reduce(t, Reduce::sum).synchronize();
    if (k == 3) mesh.store()->add("warm", 1);
  }
}

struct Case {
  const char* name;
  int signal;
  int victim;        // its rank; it runs in a process of its own
  bool hosts_store;  // the victim's process also serves the store
  int liveness_ms;
  const char* named;  // expected in a survivor's error
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class DistLiveness : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kWorld = 3;
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    ASSERT_EQ(pipe(to_child_), 0);
    ASSERT_EQ(pipe(from_child_), 0);
    child_ = fork();  // before there is any thread
    ASSERT_GE(child_, 0);
    if (child_ == 0) be_victim();
  }
  void TearDown() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    for (const int fd : {to_child_[0], to_child_[1], from_child_[0], from_child_[1]})
      if (fd >= 0) close(fd);
  }

  [[noreturn]] void be_victim() {
    int port = 0;
    try {
      std::unique_ptr<StoreServer> server;
      if (GetParam().hosts_store) {
        server = std::make_unique<StoreServer>(Endpoint{"127.0.0.1", 0}, "liveness");
        port = server->endpoint().port;
        if (write(from_child_[1], &port, sizeof port) != sizeof port) _exit(1);
      } else if (read(to_child_[0], &port, sizeof port) != sizeof port) {
        _exit(1);
      }
      const auto mesh = Mesh::join(environment(GetParam().victim, kWorld, {"127.0.0.1", port}),
                                   options_with(GetParam().liveness_ms), {.axes = {{"dp", kWorld}}});
      all_reduce_forever(*mesh);
    } catch (...) {
    }
    _exit(1);
  }

  int exchange_port(const StoreServer* server) {
    int port = server ? server->endpoint().port : 0;
    const ssize_t n = server ? write(to_child_[1], &port, sizeof port) : read(from_child_[0], &port, sizeof port);
    EXPECT_EQ(n, static_cast<ssize_t>(sizeof port));
    return port;
  }

  pid_t child_ = -1;
  int to_child_[2] = {-1, -1}, from_child_[2] = {-1, -1};
};
INSTANTIATE_TEST_SUITE_P(Signals, DistLiveness,
                         testing::Values(Case{"Killed", SIGKILL, 2, false, 3000, "rank 2"},
                                         Case{"Stopped", SIGSTOP, 2, false, 3000, "rank 2"},
                                         Case{"StoppedWithTheStore", SIGSTOP, 0, true, 1500, "rank 0"},
                                         Case{"KilledWithTheStore", SIGKILL, 0, true, 1500, "rank 0"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DistLiveness, SurvivorsEndAndNameTheVictim) {
  std::unique_ptr<StoreServer> server;
  if (!GetParam().hosts_store) server = std::make_unique<StoreServer>(Endpoint{"127.0.0.1", 0}, "liveness");
  const Endpoint at{"127.0.0.1", exchange_port(server.get())};
  const auto watch = connect_store(at, "liveness", Timeout(2000));
  std::vector<std::string> errors(kWorld);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank)
    if (rank != GetParam().victim)
      threads.emplace_back([&, rank] {
        try {
          WorkerEnvironment env = environment(rank, kWorld, at);
          env.host_store = GetParam().hosts_store;  // refers to rank 0, which is the victim
          all_reduce_forever(*Mesh::join(env, options_with(GetParam().liveness_ms), {.axes = {{"dp", kWorld}}}));
        } catch (const PeerLost& e) {
          errors[static_cast<std::size_t>(rank)] = e.what();
        }
      });
  while (watch->add("warm", 0) < kWorld) std::this_thread::sleep_for(milliseconds(5));
  kill(child_, GetParam().signal);
  for (std::thread& t : threads) t.join();
  int named = 0;
  for (std::size_t r = 0; r < kWorld; ++r) {
    if (static_cast<int>(r) == GetParam().victim) continue;
    const bool names = contains(errors[r], GetParam().named);
    // A slower survivor may learn only of the end of another survivor.
    EXPECT_TRUE(names || contains(errors[r], "see its log")) << "rank " << r << ": " << errors[r];
    named += names;
  }
  EXPECT_GE(named, 1);
}

class DistLivenessThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_F(DistLivenessThreads, ALongComputationIsNotSilence) {
  const auto errors = run_meshes(2, options_with(400), {{"dp", 2}}, [](Mesh& m) {
    if (m.rank() == 1) std::this_thread::sleep_for(milliseconds(1200));
    m.all().barrier().synchronize();
  });
  EXPECT_EQ(test::joined(errors), "");
}

TEST_F(DistLivenessThreads, LeavingEarlyIsNotAFailure) {
  const auto errors = run_meshes(4, options_with(400), {{"dp", 2}, {"tp", 2}}, [](Mesh& m) {
    m.host().barrier().synchronize();
    for (int turn = 0; m.rank() < 2 && turn < 60;
         ++turn) {  // turns, since each rank reads the clock at a different time
      m.axis("tp").barrier().synchronize();
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_EQ(test::joined(errors), "");
}

// Ranks 0 and 1 never exchange messages with rank 3, so that no connection tells them.
TEST_F(DistLivenessThreads, AFailureElsewhereEndsAllRanks) {
  const auto begin = SteadyClock::now();
  const auto errors = run_meshes(4, options_with(2000), {{"dp", 2}, {"tp", 2}}, [](Mesh& m) {
    m.host().barrier().synchronize();
    if (m.rank() == 3) {
      std::this_thread::sleep_for(milliseconds(100));
      fail("the disk is full");
    }
    if (m.rank() == 2) std::this_thread::sleep_for(milliseconds(1500));
    for (;;) {
      m.axis("tp").barrier().synchronize();
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  EXPECT_EQ(errors[3], "the disk is full");
  // The first of the two that ends names rank 3. The other may notice its closed connection before that.
  bool named = false;
  for (int r : {0, 1}) {
    const std::string& e = errors[static_cast<std::size_t>(r)];
    const bool names = contains(e, "rank 3 on ") && contains(e, "failed and left the run");
    EXPECT_TRUE(names || contains(e, str("the connection to rank ", 1 - r, " is lost"))) << e;
    named |= names;
  }
  EXPECT_TRUE(named);
  EXPECT_LT(seconds_since(begin), 5);
}

TEST(Store, HeartbeatsReportSilentAndEndedRanks) {
  const StoreServer server({"127.0.0.1", 0}, "c");
  const auto a = connect_store(server.endpoint(), "c", Timeout(2000));
  auto b = a->another_connection(Timeout(2000));
  EXPECT_TRUE(a->beat("a", "", Timeout(10'000), Timeout(2000)).empty());
  EXPECT_TRUE(b->beat("b", "", Timeout(10'000), Timeout(2000)).empty());
  EXPECT_EQ(a->beat("a", "", Timeout(-1), Timeout(2000)).size(), 2u);
  std::this_thread::sleep_for(milliseconds(120));
  auto seen = a->beat("a", "", Timeout(100), Timeout(2000));
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].name, "b");
  EXPECT_GE(seen[0].age, milliseconds(100));
  EXPECT_EQ(seen[0].last_word, "");
  b.reset();  // closes without a last message
  const auto begin = SteadyClock::now();
  do seen = a->beat("a", "", Timeout(10'000), Timeout(2000));
  while (seen.empty() && seconds_since(begin) < 2);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].last_word, kConnectionClosed);
  a->beat("a", "left", Timeout(10'000), Timeout(2000));
  b = a->another_connection(Timeout(2000));
  seen = b->beat("c", "", Timeout(10'000), Timeout(2000));
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].last_word, "left");  // the first last word counts
}

}  // namespace
}  // namespace ring
