// Exchanges by copy engines between all GPUs of this machine. Ranks are threads, in one test processes. Needs two GPUs
// that reach each other's memory.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "comm/mesh/mesh.h"
#include "tests/comm/gpu_ranks.h"

namespace ring {
namespace {

using namespace test;

bool all_reach_all(int gpus) {
  for (int a = 0; a < gpus; ++a)
    for (int b = 0; b < gpus; ++b) {
      int can = 1;
      if (a != b && (cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess || can == 0)) return false;
    }
  return true;
}

class GpuDistPeerCopies : public testing::Test {
 protected:
  void SetUp() override {
    if (!nccl_available()) GTEST_SKIP() << "this build has no NCCL";
    if (gpus() < 2) GTEST_SKIP() << "needs two GPUs";
    if (!all_reach_all(gpus())) GTEST_SKIP() << "a GPU cannot access another one's memory";
  }
  static int gpus() { return device_count(Backend::cuda); }
  static void expect_all(const GpuRankFn& fn, bool verify = false) {
    CommOptions options;
    options.verify = verify;
    const auto errors = run_gpu_ranks(
        gpus(),
        [&](Communicator& c, const Stream& s) {
          RING_CHECK(c.uses_copy_engines(), "exchanges go by NCCL: its log (debug) says why");
          fn(c, s);
        },
        options);
    EXPECT_EQ(joined(errors), "");
  }
};

// A message from rank a to rank b in a turn; numel 0 is an empty message.
struct Message {
  std::int64_t numel, start;
  DType dtype;
};
std::vector<Message> messages(int a, int b, int turn) {
  constexpr std::int64_t kSizes[] = {0, 1, 3, 1023, 1024, 1025, 2049, 7001, 20'003};
  std::vector<Message> out;
  for (int k = 0; k < (a + 2 * b + turn) % 3; ++k) {
    const int id = 5 * a + 3 * b + turn + 4 * k;
    out.push_back({kSizes[id % 9], 3 * turn + 2 * b + k, kTypes[id % 3]});
  }
  return out;
}

Tensor make_receive_tensor(Communicator& c, const Message& m, bool lands, const Stream& s) {
  const Tensor t = lands ? c.receive_buffer({m.numel}, m.dtype, s) : Tensor::empty({m.numel}, m.dtype, s);
  if (m.numel > 0) fill_zero(t, s);
  return t;
}

// Peers, sizes and numbers of messages change between turns. Some messages land in receive buffers, others do not. The
// host queues all of them before it waits for the device.
void exchange_in_turns(Communicator& c, const Stream& s, int turns) {
  std::vector<std::vector<Transfer>> received;
  std::vector<Work> works;
  for (int turn = 0; turn < turns; ++turn) {
    std::vector<Transfer> sends, receives;
    for (int p = c.size() - 1; p >= 0; --p)
      for (const Message& m : messages(c.rank(), p, turn))
        sends.push_back({filled(m.numel, c.rank(), m.dtype, s, m.start), p});
    for (int p = 0; p < c.size(); ++p)
      for (const Message& m : messages(p, c.rank(), turn))
        receives.push_back({make_receive_tensor(c, m, (turn + p) % 2 == 0, s), p});
    works.push_back(c.exchange(sends, receives, s.record()));
    received.push_back(std::move(receives));
  }
  for (Work& w : works) w.wait(s);
  for (int turn = 0; turn < turns; ++turn) {
    std::size_t next = 0;
    for (int p = 0; p < c.size(); ++p)
      for (const Message& m : messages(p, c.rank(), turn))
        expect(received[static_cast<std::size_t>(turn)][next++].tensor, s, str("turn ", turn, ", from rank ", p),
               [&](std::int64_t i) { return value(p, m.start + i); });
  }
}

TEST_F(GpuDistPeerCopies, ListsThatChange) {
  expect_all([](Communicator& c, const Stream& s) { exchange_in_turns(c, s, 30); });
}

TEST_F(GpuDistPeerCopies, CallsAreCompared) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  expect_all([](Communicator& c, const Stream& s) { exchange_in_turns(c, s, 4); }, true);
}

// Each turn sends what the last turn received, then overwrites what was sent and frees the landing memory. `early`: the
// receiver tells when its memory is free before the message is ready.
void pass_on(Communicator& c, const Stream& s, bool lands, bool early) {
  const std::int64_t n = 4 << 20;
  const int turns = 3 * c.size() + 1, next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  const Tensor x = filled(n, c.rank(), DType::f32, s);
  for (int k = 0; k < turns; ++k) {
    const Tensor out = Tensor::empty({n}, DType::f32, s),
                 in = lands ? c.receive_buffer({n}, DType::f32, s) : Tensor::empty({n}, DType::f32, s);
    const Event free = early ? s.record() : Event{};
    copy(out, x, s);
    Work w = c.exchange({{out, next}}, {{in, before, free}}, s.record());
    w.wait(s);
    fill_zero(out, s);
    copy(x, in, s);
  }
  const int from = (c.rank() + c.size() * turns - turns) % c.size();
  expect(x, s, "after all turns", [&](std::int64_t i) { return value(from, i); });
}
TEST_F(GpuDistPeerCopies, StreamsAreOrderedByEvents) {
  for (const bool lands : {true, false})
    for (const bool early : {true, false})
      expect_all([&](Communicator& c, const Stream& s) { pass_on(c, s, lands, early); });
}

// No events of the test are between the operations.
TEST_F(GpuDistPeerCopies, KeepTheirPlaceBetweenCollectives) {
  expect_all([](Communicator& c, const Stream& s) {
    const int n = c.size(), next = (c.rank() + 1) % n, before = (c.rank() + n - 1) % n;
    const Tensor t = filled(3'000'001, c.rank(), DType::f32, s), in = Tensor::zeros({3'000'001}, DType::f32, s);
    Work first = c.all_reduce(t, Reduce::sum, s.record());
    Work second = c.send_recv(t, next, in, before);
    Work third = c.all_reduce(in, Reduce::sum);
    for (Work* w : {&first, &second, &third}) w->wait(s);
    expect(in, s, "the sum of sums", [&](std::int64_t i) { return static_cast<float>(n) * sum(n, i); });
  });
}

// Two ranks exchange without a third one.
TEST_F(GpuDistPeerCopies, Pairs) {
  expect_all([](Communicator& c, const Stream& s) {
    const Tensor t = filled(10'001, 0, DType::f32, s), in = Tensor::zeros({10'001}, DType::f32, s);
    if (c.rank() == 0) c.send(t, 1, s.record()).wait(s);
    if (c.rank() == 1) c.recv(in, 0, s.record()).wait(s);
    if (c.rank() == 1) expect(in, s, "recv", [](std::int64_t i) { return value(0, i); });
    s.synchronize();
  });
}

// Rank 1 never arrives.
void expect_exchange_ends(int timeout_ms, const std::string& abort_with, const std::string& part) {
  expect_way_out(
      [&](Communicator& c, const Tensor& t, const Event& after) {
        RING_CHECK(c.uses_copy_engines(), "exchanges go by NCCL: its log (debug) says why");
        const Stream own = Stream::create(t.device());
        const Tensor in = Tensor::empty(t.shape(), t.dtype(), own);
        own.synchronize();  // the tensor is allocated
        return c.send_recv(t, 1, in, 1, after);
      },
      timeout_ms, abort_with, part);
}
TEST_F(GpuDistPeerCopies, AbortFromAnotherThreadUnblocks) {
  expect_exchange_ends(60'000, "told to stop", "told to stop");
}
TEST_F(GpuDistPeerCopies, ExchangeThatIsNeverDoneTimesOut) { expect_exchange_ends(1'000, "", "a rank is stopped"); }

// Rank 1 arrives, but its message has to wait for a long operation.
TEST_F(GpuDistPeerCopies, AbortFreesTheDevice) {
  const auto errors = run_gpu_ranks(2, [](Communicator& c, const Stream& s) {
    const Tensor out = filled(1000, c.rank(), DType::f32, s), in = c.receive_buffer({1000}, DType::f32, s);
    c.barrier(s.record()).synchronize();
    if (c.rank() == 1)
      cudaLaunchHostFunc(
          static_cast<cudaStream_t>(s.native()), [](void*) { std::this_thread::sleep_for(std::chrono::seconds(3)); },
          nullptr);
    const auto begin = Clock::now();
    Work w = c.send_recv(out, 1 - c.rank(), in, 1 - c.rank(), s.record());
    if (c.rank() == 1) return s.synchronize();
    std::this_thread::sleep_for(milliseconds(200));
    RING_CHECK(!w.done(), "nothing was left to wait for");
    c.abort("told to stop");
    std::string error;
    try {
      w.synchronize();
    } catch (const PeerLost& e) {
      error = e.what();
    }
    RING_CHECK(contains(error, "told to stop"), "got '", error, "'");
    while (!w.done() && seconds_since(begin) < 2) std::this_thread::sleep_for(milliseconds(10));
    RING_CHECK(w.done(), "the device waits after ", seconds_since(begin), " s");
  });
  EXPECT_EQ(joined(errors), "");
}

// Freed landing memory is used again, and neighbouring blocks are merged.
TEST_F(GpuDistPeerCopies, LandingMemoryIsReused) {
  expect_all([](Communicator& c, const Stream& s) {
    const std::int64_t mebi = 1 << 18;  // elements of f32
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<Tensor> parts;
      for (int k = 0; k < 8; ++k) parts.push_back(c.receive_buffer({8 * mebi}, DType::f32, s));
      std::swap(parts[2], parts[5]);
      parts.clear();
      const Tensor whole = c.receive_buffer({64 * mebi}, DType::f32, s);
      RING_CHECK(c.receive_bytes() == std::size_t{64} << 20, c.receive_bytes(), " bytes are held");
    }
  });
}

TEST_F(GpuDistPeerCopies, CanBeTurnedOff) {
  CommOptions options;
  options.copy_engines = false;
  const auto errors = run_gpu_ranks(
      2,
      [](Communicator& c, const Stream& s) {
        RING_CHECK(!c.uses_copy_engines(), "exchanges go by copy engines");
        exchange_in_turns(c, s, 3);
      },
      options);
  EXPECT_EQ(joined(errors), "");
}

const char *kPort = "RING_TEST_COPIES_PORT", *kRank = "RING_TEST_COPIES_RANK";

// Copy engines are used only by axes beside kernels.
void run_process(int rank, int world, int port) {
  const Device device{Backend::cuda, rank};
  const auto mesh = Mesh::join(environment(rank, world, port), {},
                               {.axes = {{"cp", world, AxisTransfers::beside_kernels}}, .device = device});
  RING_CHECK(mesh->axis("cp").uses_copy_engines(), "exchanges go by NCCL: its log (debug) says why");
  exchange_in_turns(mesh->axis("cp"), Stream::create(device), 20);
  mesh->host().barrier().synchronize();
}

// Runs in processes that the test below starts.
TEST(GpuDistPeerCopiesProcess, DISABLED_Run) {
  const char *port = std::getenv(kPort), *rank = std::getenv(kRank);
  if (!port || !rank) GTEST_SKIP() << "part of another test";
  run_process(std::atoi(rank), device_count(Backend::cuda), std::atoi(port));
}

TEST_F(GpuDistPeerCopies, BetweenProcesses) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const StoreServer server({"127.0.0.1", 0}, "gpu");
  std::string program = "/proc/self/exe", filter = "--gtest_filter=GpuDistPeerCopiesProcess.*",
              disabled = "--gtest_also_run_disabled_tests";
  char* arguments[] = {program.data(), filter.data(), disabled.data(), nullptr};
  std::vector<pid_t> children;
  setenv(kPort, std::to_string(server.endpoint().port).c_str(), 1);
  for (int rank = 1; rank < gpus(); ++rank) {
    setenv(kRank, std::to_string(rank).c_str(), 1);
    ASSERT_EQ(posix_spawn(&children.emplace_back(-1), program.c_str(), nullptr, nullptr, arguments, environ), 0);
  }
  unsetenv(kPort), unsetenv(kRank);
  std::string error;
  try {
    run_process(0, gpus(), server.endpoint().port);
  } catch (const std::exception& e) {
    error = e.what();
  }
  EXPECT_EQ(error, "");
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace ring
