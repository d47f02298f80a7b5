// A rank is missing, dies, stops or calls a different operation: the result is an Error in bounded time, never a hang.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace ring {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

Tensor ones(std::int64_t n) {
  const Stream s = Stream::cpu(1);
  const Tensor t = Tensor::zeros({n}, DType::f32, s);
  for (std::int64_t i = 0; i < n; ++i) t.data<float>()[i] = 1;
  return t;
}

CommOptions quick(int timeout_ms, bool verify = false) {
  CommOptions o;
  o.connect_timeout = Timeout(2000);
  o.timeout = Timeout(timeout_ms);
  o.verify = verify;
  return o;
}

class DistFailure : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_F(DistFailure, AMissingRankIsAnErrorAtTheStart) {
  const StoreServer server({"127.0.0.1", 0}, "c");
  std::shared_ptr<Store> store = connect_store(server.endpoint(), "c", Timeout(2000));
  CommOptions options = quick(500);
  options.connect_timeout = Timeout(300);
  const auto begin = Clock::now();
  try {
    make_gloo_communicator(0, 2, store, "g", std::make_shared<CommQueue>(), options);
    FAIL() << "met a rank that does not exist";
  } catch (const Error& e) {
    EXPECT_TRUE(contains(e.what(), "rank 0 of 2 did not connect")) << e.what();
  }
  EXPECT_LT(seconds_since(begin), 2);
}

TEST_F(DistFailure, ARankThatDoesNotJoinIsNamedAfterTheTimeout) {
  std::atomic<bool> over{false};
  const auto begin = Clock::now();
  const auto errors = test::run_ranks(
      3,
      [&](Communicator& c) {
        if (c.rank() == 2) return over.wait(false);  // alive, but busy otherwise
        try {
          c.all_reduce(ones(10), Reduce::sum).synchronize();
        } catch (const Error&) {
          over = true;
          over.notify_all();
          throw;
        }
      },
      quick(300));
  EXPECT_LT(seconds_since(begin), 2.5);
  EXPECT_TRUE(contains(errors[0] + errors[1], "no answer from rank 2 within 0.3 s")) << test::joined(errors);
  EXPECT_TRUE(contains(errors[0] + errors[1], "all_reduce sum of f32[10]")) << test::joined(errors);
  EXPECT_FALSE(errors[0].empty() || errors[1].empty());
}

// Runs two ranks that call different operations. At least one rank must report both sides, and both must fail.
void expect_mismatch(const test::RankFn& fn, const std::vector<std::string>& parts) {
  const std::vector<std::string> errors = test::run_ranks(2, fn, quick(5000, true));
  for (const std::string& e : errors) EXPECT_FALSE(e.empty()) << test::joined(errors);
  for (const std::string& part : parts)
    EXPECT_TRUE(contains(test::joined(errors), part)) << part << " is not in\n" << test::joined(errors);
}

TEST_F(DistFailure, AMismatchNamesBothSidesAndTheirLines) {
  const unsigned line = __LINE__ + 4;
  expect_mismatch(
      [](Communicator& c) {
        if (c.rank() == 0)
          c.all_reduce(ones(10), Reduce::sum).synchronize();
        else
          c.broadcast(ones(20), 0).synchronize();
      },
      {"all_reduce sum of f32[10]", "broadcast of f32[20]", str("rank 0 at comm/failure_test.cpp:", line),
       str("rank 1 at comm/failure_test.cpp:", line + 2), "the same operations"});
}

TEST_F(DistFailure, MismatchesOfDtypeShapeAndPiecesAreNamed) {
  expect_mismatch(
      [](Communicator& c) {
        const Tensor t = Tensor::zeros({10}, c.rank() == 0 ? DType::f32 : DType::bf16, Stream::cpu(1));
        c.all_reduce(t, Reduce::sum).synchronize();
      },
      {"all_reduce sum of f32[10]", "all_reduce sum of bf16[10]"});
  expect_mismatch(
      [](Communicator& c) {
        c.reduce_pieces({{ones(4), 0}, {ones(5), c.rank()}}, Reduce::sum).synchronize();
      },
      {"f32[5] of rank 0", "f32[5] of rank 1"});
}

TEST_F(DistFailure, MismatchesOfMessagesAreNamed) {
  expect_mismatch(
      [](Communicator& c) {
        if (c.rank() == 0)
          c.exchange({{ones(3), 1}, {ones(4), 1}}, {}).synchronize();
        else
          c.exchange({}, {{ones(4), 0}, {ones(3), 0}}).synchronize();
      },
      {"expects f32 x 4, f32 x 3 from rank 0", "sends it f32 x 3, f32 x 4", "comm/failure_test.cpp"});
  expect_mismatch(
      [](Communicator& c) {
        c.rank() == 0 ? c.send(ones(3), 1).synchronize() : c.all_reduce(ones(3), Reduce::sum).synchronize();
      },
      {"send of f32[3] to rank 1", "all_reduce sum of f32[3]"});
}

TEST_F(DistFailure, AMismatchWithoutChecksTimesOut) {
  const auto errors = test::run_ranks(
      2, [](Communicator& c) { c.all_reduce(ones(c.rank() == 0 ? 10 : 200), Reduce::sum).synchronize(); }, quick(300));
  EXPECT_FALSE(errors[0].empty() || errors[1].empty());
  EXPECT_TRUE(contains(test::joined(errors), "in a different operation")) << test::joined(errors);
}

TEST_F(DistFailure, AfterAFailureAllOperationsFailAtOnce) {
  const auto errors = test::run_ranks(
      2,
      [](Communicator& c) {
        if (c.rank() == 1) return;
        EXPECT_THROW(c.all_reduce(ones(10), Reduce::sum).synchronize(), PeerLost);
        const auto begin = Clock::now();
        try {
          c.barrier().synchronize();
          ADD_FAILURE() << "a broken communicator worked";
        } catch (const Error& e) {
          EXPECT_TRUE(contains(e.what(), "not started")) << e.what();
        }
        EXPECT_LT(seconds_since(begin), 0.8);  // does not wait the second for which a peer is waited for
      },
      quick(1000));
  EXPECT_EQ(test::joined(errors), "");
}

TEST_F(DistFailure, AbortFromAnotherThreadUnblocks) {
  const auto begin = Clock::now();
  const auto errors = test::run_ranks(
      2,
      [](Communicator& c) {
        if (c.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          return;
        }
        Work w = c.all_reduce(ones(100'000), Reduce::sum);
        std::thread watchdog([&c] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          c.abort("told to stop");
        });
        try {
          w.synchronize();
          ADD_FAILURE() << "finished without its peer";
        } catch (const Error& e) {
          EXPECT_TRUE(contains(e.what(), "told to stop")) << e.what();
        }
        watchdog.join();
      },
      quick(30'000));
  EXPECT_EQ(test::joined(errors), "");
  EXPECT_LT(seconds_since(begin), 2);
}

// Rank 3 of 4 is a process that is killed while the others run collectives without end.
TEST_F(DistFailure, AKilledProcessIsNoticedByAll) {
  const std::string cookie = random_cookie();
  int to_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t child = fork();  // before there is any thread
  ASSERT_GE(child, 0);
  const auto endless = [](int rank, const Endpoint& at, const std::string& key) {
    std::shared_ptr<Store> store = connect_store(at, key, Timeout(2000));
    const auto c = make_gloo_communicator(rank, 4, store, "g", std::make_shared<CommQueue>(), quick(20'000));
    const Tensor t = ones(200'000);
    for (int k = 0;; ++k) {
      c->all_reduce(t, Reduce::max).synchronize();
      if (k == 3) store->add("warm", 1);
    }
  };
  if (child == 0) {
    int port = 0;
    if (read(to_child[0], &port, sizeof port) != sizeof port) _exit(1);
    try {
      endless(3, {"127.0.0.1", port}, cookie);
    } catch (...) {
    }
    _exit(1);
  }
  const StoreServer server({"127.0.0.1", 0}, cookie);
  const int port = server.endpoint().port;
  ASSERT_EQ(write(to_child[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));

  std::vector<std::string> errors(3);
  std::vector<double> ended(3);
  Clock::time_point killed{};
  std::vector<std::thread> threads;
  std::atomic<bool> go{false};
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      try {
        endless(rank, server.endpoint(), cookie);
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
      const auto now = Clock::now();
      go.wait(false);
      ended[static_cast<std::size_t>(rank)] = std::chrono::duration<double>(now - killed).count();
    });
  const auto watch = connect_store(server.endpoint(), cookie, Timeout(2000));
  while (watch->add("warm", 0) < 4) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  killed = Clock::now();
  kill(child, SIGKILL);
  go = true;
  go.notify_all();
  for (std::thread& t : threads) t.join();
  waitpid(child, nullptr, 0);
  close(to_child[0]);
  close(to_child[1]);
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_FALSE(errors[r].empty()) << "rank " << r;
    EXPECT_LT(ended[r], 1.0) << "rank " << r << ": " << errors[r];
  }
  EXPECT_TRUE(contains(test::joined(errors), "rank 3")) << test::joined(errors);
}

// Kills a process while most of one message is still to be transferred. `sends`: the process sends the message;
// otherwise it receives it.
void expect_loss_is_noticed(bool sends) {
  constexpr std::int64_t kMany = 256 << 20;  // far more than arrives before the process dies, also on a busy machine
  const std::string cookie = random_cookie();
  int to_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t child = fork();  // before there is any thread
  ASSERT_GE(child, 0);
  const auto join = [&](int rank, const Endpoint& at) {
    return make_gloo_communicator(rank, 2, connect_store(at, cookie, Timeout(2000)), "g", std::make_shared<CommQueue>(),
                                  quick(20'000));
  };
  const Tensor big = Tensor::zeros({kMany}, DType::u8, Stream::cpu(1));
  if (child == 0) {
    int port = 0;
    if (read(to_child[0], &port, sizeof port) != sizeof port) _exit(1);
    try {
      const auto c = join(1, {"127.0.0.1", port});
      const Work w = sends ? c->send(big, 0) : c->recv(big, 0);
      usleep(3000);
      kill(getpid(), SIGKILL);
    } catch (...) {
    }
    _exit(1);
  }
  const StoreServer server({"127.0.0.1", 0}, cookie);
  const int port = server.endpoint().port;
  ASSERT_EQ(write(to_child[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const auto begin = Clock::now();
  try {
    const auto c = join(0, server.endpoint());
    (sends ? c->recv(big, 1) : c->send(big, 1)).synchronize();
    ADD_FAILURE() << "all arrived";
  } catch (const Error& e) {
    EXPECT_TRUE(contains(e.what(), "rank 1")) << e.what();
  }
  EXPECT_LT(seconds_since(begin), 10) << (sends ? "receiving" : "sending");
  waitpid(child, nullptr, 0);
  close(to_child[0]);
  close(to_child[1]);
}

TEST_F(DistFailure, APeerThatDiesInTheMiddleOfAMessageIsNoticed) {
  for (int i = 0; i < 3; ++i) {
    expect_loss_is_noticed(true);
    expect_loss_is_noticed(false);
  }
}

}  // namespace
}  // namespace ring
