#include "core/stream.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include "core/cpu/pool_allocator.h"
#include "core/cpu/thread_pool.h"
#include "core/devices.h"
#include "core/fake.h"
#include "core/unavailable.h"

namespace ring {
namespace {

using Clock = std::chrono::steady_clock;

class CpuTime final : public EventImpl {
 public:
  bool done() const override { return true; }
  void synchronize() const override {}
  double host_seconds() const override { return std::chrono::duration<double>(at_.time_since_epoch()).count(); }

 private:
  Clock::time_point at_ = Clock::now();
};

class CpuStream final : public StreamImpl {
 public:
  explicit CpuStream(int threads) : pool_(threads) {
    device = {Backend::cpu, 0};
    allocator = std::make_shared<PoolAllocator>();
  }
  ~CpuStream() override { drop_resources(); }
  Event record() override { return {}; }  // work runs inline: everything queued is done
  Event record_time() override { return Event(std::make_shared<CpuTime>()); }
  void wait(const Event& e) override { e.synchronize(); }
  void synchronize() override {}
  ThreadPool* pool() override { return &pool_; }
  int threads() const override { return pool_.size(); }
  // With 0 bytes, addresses may be null, which memcpy() and memset() do not allow.
  void copy(void* dst, const void* src, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(dst, src, bytes);
  }
  void fill_zero(void* dst, std::size_t bytes) override {
    if (bytes > 0) std::memset(dst, 0, bytes);
  }

 private:
  ThreadPool pool_;
};

std::array<StreamFactory, kBackends>& factories() {
  static std::array<StreamFactory, kBackends> f{};
  return f;
}
std::array<DeviceCounter, kBackends>& counters() {
  static std::array<DeviceCounter, kBackends> c{};
  return c;
}

std::atomic<std::uint64_t> waits{0};

}  // namespace

std::uint64_t host_wait_count() { return waits; }
void count_host_wait() { ++waits; }

Stream Stream::cpu(int threads) { return Stream(std::make_shared<CpuStream>(threads)); }

Stream Stream::create(Device device, int threads) {
  if (device.backend == Backend::cpu && threads <= 0) threads = default_threads();
  if (FakeMode::on()) return make_fake_stream(device, threads);
  if (device.backend == Backend::cpu) return cpu(threads);
  const StreamFactory factory = factories()[static_cast<std::size_t>(device.backend)];
  if (!factory)
    fail_without(Resource::gpu, "device '", to_string(device.backend),
                 "': this build does not include that backend; rebuild with `make build CUDA=ON`");
  return factory(device, threads);
}

double Event::seconds_after(const Event& earlier) const {
  RING_CHECK(impl_ && earlier.impl_, "events that were recorded without timing cannot be timed");
  return impl_->seconds_after(*earlier.impl_);
}

ThreadPool& Stream::pool() const {
  ThreadPool* pool = impl_->pool();
  RING_CHECK(pool, "a ", device(), " stream has no thread pool");
  return *pool;
}

bool register_stream_factory(Backend backend, StreamFactory factory) {
  factories()[static_cast<std::size_t>(backend)] = factory;
  return true;
}

bool register_device_counter(Backend backend, DeviceCounter counter) {
  counters()[static_cast<std::size_t>(backend)] = counter;
  return true;
}

int device_count(Backend backend) {
  if (backend == Backend::cpu) return 1;
  const DeviceCounter counter = counters()[static_cast<std::size_t>(backend)];
  return counter ? counter() : 0;
}

bool backend_available(Backend backend) { return device_count(backend) > 0; }

}  // namespace ring
