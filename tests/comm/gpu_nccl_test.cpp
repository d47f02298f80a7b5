// NCCL between all GPUs of this machine. Ranks are threads with one device each. Needs two GPUs.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "comm/mesh/mesh.h"
#include "tests/comm/gpu_ranks.h"

namespace ring {
namespace {

using namespace test;

class GpuDistNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (!nccl_available()) GTEST_SKIP() << "this build has no NCCL";
    if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "needs two GPUs";
  }
  static int gpus() { return device_count(Backend::cuda); }
  void expect_all(const GpuRankFn& fn, CommOptions options = {}) {
    options.copy_engines = false;  // tested in cuda_peer_copies_test.cpp
    EXPECT_EQ(joined(run_gpu_ranks(gpus(), fn, options)), "");
  }
};

TEST_F(GpuDistNccl, Reductions) {
  expect_all([](Communicator& c, const Stream& s) {
    const int n = c.size();
    for (const DType dtype : kTypes)
      for (const std::int64_t size : {1, 1000, 1'000'003}) {
        const Tensor t = filled(size, c.rank(), dtype, s), top = filled(size, c.rank(), dtype, s);
        c.all_reduce(t, Reduce::sum, s.record()).wait(s);
        c.all_reduce(top, Reduce::max, s.record()).wait(s);
        expect(t, s, "all_reduce sum", [&](std::int64_t i) { return sum(n, i); });
        expect(top, s, "all_reduce max", [&](std::int64_t i) { return value(n - 1, i); });
        const Tensor in = filled(size * n, c.rank(), dtype, s), out = Tensor::zeros({size}, dtype, s);
        c.reduce_scatter(out, in, Reduce::sum, s.record()).wait(s);
        expect(out, s, "reduce_scatter", [&](std::int64_t i) { return sum(n, c.rank() * size + i); });
      }
  });
}

TEST_F(GpuDistNccl, Copies) {
  expect_all([](Communicator& c, const Stream& s) {
    const int n = c.size();
    for (const DType dtype : kTypes)
      for (const std::int64_t size : {1, 777, 300'001}) {
        const Tensor mine = filled(size, c.rank(), dtype, s), all = Tensor::zeros({size * n}, dtype, s);
        c.all_gather(all, mine, s.record()).wait(s);
        expect(all, s, "all_gather", [&](std::int64_t i) { return value(static_cast<int>(i / size), i % size); });
        const Tensor in = filled(size * n, c.rank(), dtype, s), out = Tensor::zeros({size * n}, dtype, s);
        c.all_to_all(out, in, s.record()).wait(s);
        expect(out, s, "all_to_all",
               [&](std::int64_t i) { return value(static_cast<int>(i / size), c.rank() * size + i % size); });
        for (int root = 0; root < n; ++root) {
          const Tensor t = filled(size, c.rank(), dtype, s);
          c.broadcast(t, root, s.record()).wait(s);
          expect(t, s, "broadcast", [&](std::int64_t i) { return value(root, i); });
        }
        const Tensor from = Tensor::zeros({size}, dtype, s);
        const int next = (c.rank() + 1) % n, before = (c.rank() + n - 1) % n;
        c.send_recv(mine, next, from, before, s.record()).wait(s);
        expect(from, s, "send_recv", [&](std::int64_t i) { return value(before, i); });
      }
    c.barrier().synchronize();
  });
}

TEST_F(GpuDistNccl, PiecesWithOwners) {
  expect_all([](Communicator& c, const Stream& s) {
    const std::int64_t sizes[] = {5, 100'003, 0, 7, 64, 250'000};
    const auto make = [&] {
      std::vector<OwnedPiece> out;
      for (const std::int64_t size : sizes) {
        const int id = static_cast<int>(out.size());
        out.push_back({filled(size, c.rank(), kTypes[id % 3], s, id), id * 3 % c.size()});
      }
      return out;
    };
    const std::vector<OwnedPiece> summed = make(), sent = make();
    c.reduce_pieces(summed, Reduce::sum, s.record()).wait(s);
    c.broadcast_pieces(sent, s.record()).wait(s);
    c.reduce_pieces({}, Reduce::sum).wait(s);
    for (std::size_t k = 0; k < summed.size(); ++k) {
      const auto at = [&](std::int64_t i) { return static_cast<std::int64_t>(k) + i; };
      if (summed[k].root == c.rank())
        expect(summed[k].tensor, s, "reduce_pieces", [&](std::int64_t i) { return sum(c.size(), at(i)); });
      expect(sent[k].tensor, s, "broadcast_pieces", [&](std::int64_t i) { return value(sent[k].root, at(i)); });
    }
  });
}

TEST_F(GpuDistNccl, ExchangeOfListsThatDiffer) {
  CommOptions verify;
  verify.verify = true;
  expect_all(
      [](Communicator& c, const Stream& s) {
        const auto count = [](int a, int b) { return (a + b) % 3; };
        const auto numel = [](int a, int b, int k) { return 1 + 1000 * a + 100 * b + 70'000 * k; };
        std::vector<Transfer> sends, receives;
        for (int p = c.size() - 1; p >= 0; --p)
          for (int k = 0; k < count(c.rank(), p); ++k)
            sends.push_back({filled(numel(c.rank(), p, k), c.rank(), DType::f32, s, 10 * p + k), p});
        for (int p = 0; p < c.size(); ++p)
          for (int k = 0; k < count(p, c.rank()); ++k)
            receives.push_back({Tensor::zeros({numel(p, c.rank(), k)}, DType::f32, s), p});
        c.exchange(sends, receives, s.record()).wait(s);
        c.exchange({}, {}).wait(s);
        std::size_t next = 0;
        for (int p = 0; p < c.size(); ++p)
          for (int k = 0; k < count(p, c.rank()); ++k)
            expect(receives[next++].tensor, s, "exchange",
                   [&](std::int64_t i) { return value(p, 10 * c.rank() + k + i); });
      },
      verify);
}

// Computation and transfers alternate on two streams, and the host queues all of them without waiting.
TEST_F(GpuDistNccl, StreamsAreOrderedByEvents) {
  expect_all([](Communicator& c, const Stream& s) {
    const std::int64_t n = 4 << 20;
    const int turns = 3 * c.size() + 1, next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
    const Tensor x = filled(n, c.rank(), DType::f32, s);
    c.barrier().synchronize();
    for (int k = 0; k < turns; ++k) {
      const Tensor out = Tensor::empty({n}, DType::f32, s), in = Tensor::empty({n}, DType::f32, s);
      copy(out, x, s);
      Work w = c.send_recv(out, next, in, before, s.record());
      w.wait(s);
      fill_zero(out, s);  // must not run before `out` is sent
      copy(x, in, s);
    }
    const int from = (c.rank() + c.size() * turns - turns) % c.size();
    expect(x, s, "after all turns", [&](std::int64_t i) { return value(from, i); });
  });
}

TEST_F(GpuDistNccl, MismatchNamesBothSides) {
  CommOptions options;
  options.verify = true;
  options.timeout = milliseconds(5000);
  const auto errors = run_gpu_ranks(
      2,
      [](Communicator& c, const Stream& s) {
        const Tensor t = filled(10, c.rank(), DType::f32, s);
        if (c.rank() == 0)
          c.all_reduce(t, Reduce::sum, s.record()).synchronize();
        else
          c.broadcast(t, 0, s.record()).synchronize();
      },
      options);
  const std::string all = joined(errors);
  for (const char* part : {"all_reduce sum of f32[10]", "broadcast of f32[10]",
                           "rank 0 at comm/gpu_nccl_test.cpp:", "rank 1 at comm/gpu_nccl_test.cpp:"})
    EXPECT_TRUE(contains(all, part)) << all;
}

Work reduce(Communicator& c, const Tensor& t, const Event& after) { return c.all_reduce(t, Reduce::sum, after); }

TEST_F(GpuDistNccl, AbortFromAnotherThreadUnblocks) { expect_way_out(reduce, 60'000, "told to stop", "told to stop"); }
TEST_F(GpuDistNccl, OperationThatIsNeverDoneTimesOut) { expect_way_out(reduce, 1'000, "", "a rank is stopped"); }

// A recorded operation reads the values of each replay, between operations that are not recorded.
TEST_F(GpuDistNccl, RecordedOperationsAreReplayed) {
  expect_all([](Communicator& c, const Stream& s) {
    const std::int64_t n = 100'003;
    const Tensor in = filled(n, c.rank(), DType::f32, s), t = Tensor::zeros({n}, DType::f32, s);
    const auto add_up = [&] {
      copy(t, in, s);
      c.all_reduce(t, Reduce::sum, s.record()).wait(s);
    };
    add_up();
    const auto work = s.impl().record_work(add_up);
    for (int k = 0; k < 3; ++k) {
      copy(in, filled(n, c.rank(), DType::f32, s, k), s);
      work->launch();
      expect(t, s, "a replay", [&](std::int64_t i) { return sum(c.size(), k + i); });
      c.barrier(s.record()).wait(s);
    }
  });
}

TEST_F(GpuDistNccl, AReplayThatIsNeverDoneTimesOutAndIsNamed) {
  CommOptions options;
  options.verify = false;
  options.timeout = milliseconds(1'000);
  const auto errors = run_gpu_ranks(
      2,
      [&](Communicator& c, const Stream& s) {
        const Tensor t = filled(1000, 0, DType::f32, s);
        const auto add_up = [&] { c.all_reduce(t, Reduce::sum, s.record()).wait(s); };
        add_up();
        const auto work = s.impl().record_work(add_up);
        work->launch();
        c.barrier(s.record()).synchronize();
        if (c.rank() == 1) return std::this_thread::sleep_for(milliseconds(4000));
        const auto begin = Clock::now();
        work->launch();
        s.synchronize();  // ends since the kernels are told to give up
        RING_CHECK(seconds_since(begin) < 4, "took ", seconds_since(begin), " s");
        try {
          c.barrier().synchronize();
          fail("a broken communicator worked");
        } catch (const PeerLost& e) {
          for (const char* part : {"all_reduce sum of f32[1000]", "in a replayed step", "a rank is stopped"})
            RING_CHECK(contains(e.what(), part), e.what());
        }
      },
      options);
  EXPECT_EQ(joined(errors), "");
}

TEST_F(GpuDistNccl, MeshAxes) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const StoreServer server({"127.0.0.1", 0}, "gpu");
  const int world = gpus() / 2 * 2;
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const Device device{Backend::cuda, rank};
        const auto mesh = Mesh::join(environment(rank, world, server.endpoint().port), {},
                                     {.axes = {{"dp", world / 2}, {"cp", 2, AxisTransfers::beside_kernels}},
                                      .unions = {{"dp", "cp"}},
                                      .device = device});
        const Stream s = Stream::create(device);
        for (Communicator* c : {&mesh->axis("cp"), &mesh->axis("dp"), &mesh->group({"dp", "cp"}), &mesh->all()}) {
          const Tensor t = filled(1000, c->rank(), DType::f32, s);
          c->all_reduce(t, Reduce::sum, s.record()).wait(s);
          expect(t, s, "sum over an axis", [&](std::int64_t i) { return sum(c->size(), i); });
        }
        RING_CHECK(mesh->host().backend() == "gloo" && mesh->all().backend() == "nccl", "backends");
        mesh->host().barrier().synchronize();
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(joined(errors), "");
}

// Calls all_reduce without end. Reports through the store once the operations are under way.
void endless(Mesh& mesh, int device) {
  const Stream s = Stream::create({Backend::cuda, device});
  const Tensor t = Tensor::zeros({4 << 20}, DType::f32, s);
  for (int k = 0;; ++k) {
    mesh.all().all_reduce(t, Reduce::sum, s.record()).synchronize();
    if (k == 3) mesh.store()->add("warm", 1);
  }
}

const char* kVictimPort = "RING_TEST_VICTIM_PORT";

// Runs in a process that the test below starts.
TEST(GpuDistNcclVictim, DISABLED_Run) {
  const char* port = std::getenv(kVictimPort);
  if (!port) GTEST_SKIP() << "part of another test";
  endless(*Mesh::join(environment(1, 2, std::atoi(port)), {}, {.axes = {{"dp", 2}}, .device = {Backend::cuda, 1}}), 1);
}

class GpuDistNcclSignal : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, GpuDistNcclSignal, testing::Values(SIGKILL, SIGSTOP));

TEST_P(GpuDistNcclSignal, SurvivorIsOutAndNamesTheVictim) {
  if (!nccl_available() || !gloo_available()) GTEST_SKIP() << "this build has no NCCL or no Gloo";
  if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "needs two GPUs";
  const StoreServer server({"127.0.0.1", 0}, "gpu");
  setenv(kVictimPort, std::to_string(server.endpoint().port).c_str(), 1);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=GpuDistNcclVictim.*",
              disabled = "--gtest_also_run_disabled_tests";
  char* arguments[] = {program.data(), filter.data(), disabled.data(), nullptr};
  pid_t child = -1;
  ASSERT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  unsetenv(kVictimPort);
  std::string error;
  Clock::time_point ended;
  std::thread survivor([&] {
    try {
      endless(*Mesh::join(environment(0, 2, server.endpoint().port), {},
                          {.axes = {{"dp", 2}}, .device = {Backend::cuda, 0}}),
              0);
    } catch (const std::exception& e) {
      error = e.what();
    }
    ended = Clock::now();
  });
  const auto watch = connect_store(server.endpoint(), "gpu", Timeout(2000));
  const auto start = Clock::now();
  while (watch->add("warm", 0) < 2 && seconds_since(start) < 60) std::this_thread::sleep_for(milliseconds(5));
  const auto begin = Clock::now();
  kill(child, GetParam());
  survivor.join();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(contains(error, "rank 1")) << error;
  EXPECT_LT(std::chrono::duration<double>(ended - begin).count(), 5.0) << error;
}

}  // namespace
}  // namespace ring
