#pragma once
// Runs a function as several ranks with a GPU each: one thread per rank, with its own store, watchdog and communicator.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/nccl.h"
#include "core/devices.h"
#include "job/environment.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace ring::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

inline constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::i32};

// Small whole numbers, so that sums are exact in every order and in bf16.
inline float value(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * (i % 7)); }
inline float sum(int size, std::int64_t i) { return static_cast<float>(size * (size + 1) / 2 * (i % 7)); }

inline Tensor upload(const std::vector<float>& values, DType dtype, const Stream& s) {
  if (dtype == DType::f32) return from_host(values, s);
  if (dtype == DType::i32) return from_host(std::vector<std::int32_t>(values.begin(), values.end()), s);
  std::vector<bf16> halves;
  for (const float v : values) halves.push_back(to_bf16(v));
  return from_host(halves, s);
}

inline Tensor filled(std::int64_t n, int rank, DType dtype, const Stream& s, std::int64_t start = 0) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(value(rank, start + i));
  return upload(v, dtype, s);
}

inline std::vector<float> download(const Tensor& t, const Stream& s) {
  if (t.dtype() == DType::f32) return to_host<float>(t, s);
  std::vector<float> out;
  if (t.dtype() == DType::i32)
    for (const std::int32_t x : to_host<std::int32_t>(t, s)) out.push_back(static_cast<float>(x));
  else
    for (const bf16 x : to_host<bf16>(t, s)) out.push_back(to_float(x));
  return out;
}

template <class Want>
void expect(const Tensor& t, const Stream& s, const std::string& what, Want want) {
  const std::vector<float> got = download(t, s);
  for (std::size_t i = 0; i < got.size(); ++i)
    RING_CHECK(got[i] == want(static_cast<std::int64_t>(i)), what, " of ", describe(t), ", element ", i, ": got ",
               got[i], ", expected ", want(static_cast<std::int64_t>(i)));
}

using GpuRankFn = std::function<void(Communicator&, const Stream& compute)>;

inline std::vector<std::string> run_gpu_ranks(int size, const GpuRankFn& fn, const CommOptions& options = {}) {
  const StoreServer server({"127.0.0.1", 0}, "gpu");
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        std::shared_ptr<Store> store = connect_store(server.endpoint(), "gpu", Timeout(5000));
        const Device device{Backend::cuda, rank};
        const auto watchdog = make_nccl_watchdog(device, size);
        const auto comm = make_nccl_communicator({rank, size, device, "test"}, store, watchdog, options);
        fn(*comm, Stream::create(device));
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

// Expects that rank 0's operation ends with an error that contains `part`. Rank 1 stays away, so that the operation
// hangs on the device until it times out or, unless `abort_with` is "", is aborted.
using Start = std::function<Work(Communicator&, const Tensor&, const Event& after)>;
inline void expect_way_out(const Start& start, int timeout_ms, const std::string& abort_with, const std::string& part) {
  CommOptions options;
  options.verify = false;
  options.timeout = milliseconds(timeout_ms);
  const auto errors = run_gpu_ranks(
      2,
      [&](Communicator& c, const Stream& s) {
        c.barrier().synchronize();
        if (c.rank() == 1) return std::this_thread::sleep_for(milliseconds(4000));
        const auto begin = Clock::now();
        const Tensor t = filled(1000, 0, DType::f32, s);
        std::thread other([&] {
          std::this_thread::sleep_for(milliseconds(300));
          if (!abort_with.empty()) c.abort(abort_with);
        });
        std::string error;
        try {
          start(c, t, s.record()).synchronize();
        } catch (const PeerLost& e) {
          error = e.what();
        }
        other.join();
        RING_CHECK(contains(error, part), "got '", error, "'");
        RING_CHECK(seconds_since(begin) < 4, "took ", seconds_since(begin), " s");
        s.synchronize();  // the device does not hang either
        try {
          c.barrier().synchronize();
          fail("a broken communicator worked");
        } catch (const PeerLost& e) {
          RING_CHECK(contains(e.what(), "not started"), e.what());
        }
      },
      options);
  EXPECT_EQ(joined(errors), "");
}

inline WorkerEnvironment environment(int rank, int world, int port) {
  WorkerEnvironment env;
  env.rank = env.local_rank = rank;
  env.world = env.local_world = world;
  env.store = {"127.0.0.1", port};
  env.cookie = "gpu";
  return env;
}

}  // namespace ring::test
