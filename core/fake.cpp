#include "core/fake.h"

#include <algorithm>

#include "core/storage.h"

namespace ring {
namespace {

constexpr std::size_t kAlignment = 256;                       // like cudaMalloc
constexpr std::uintptr_t kNowhere = std::uintptr_t{1} << 60;  // outside of every process's address space
constexpr std::uintptr_t kNowhereOnHost = kNowhere << 1;

class FakeAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    stats_.in_use += bytes;
    stats_.peak = std::max(stats_.peak, stats_.in_use);
    stats_.reserved = std::max(stats_.reserved, stats_.in_use);
    void* p = reinterpret_cast<void*>(next_);  // NOLINT: never dereferenced
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return p;
  }
  void free(void*, std::size_t bytes) override { stats_.in_use -= bytes; }
  MemoryStats stats() const override { return stats_; }
  void reset_peak() override { stats_.peak = stats_.in_use; }
  void trim() override { stats_.reserved = stats_.in_use; }

 private:
  MemoryStats stats_;
  std::uintptr_t next_ = kNowhere;
};

class FakeStream final : public StreamImpl {
 public:
  FakeStream(Device d, int threads) : threads_(threads) {
    device = d;
    allocator = std::make_shared<FakeAllocator>();
  }
  ~FakeStream() override { drop_resources(); }
  bool computes() const override { return false; }
  Event record() override { return {}; }
  Event record_time() override { return {}; }
  void wait(const Event&) override {}
  void synchronize() override {}
  void copy(void*, const void*, std::size_t) override {}
  void fill_zero(void*, std::size_t) override {}
  int threads() const override { return threads_; }
  std::shared_ptr<void> host_buffer(std::size_t bytes) override {
    next_host_ += bytes + kAlignment;
    return {reinterpret_cast<void*>(next_host_ - bytes), [](void*) {}};  // NOLINT: never dereferenced
  }

 private:
  int threads_;
  std::uintptr_t next_host_ = kNowhereOnHost;  // addresses are unique, because they identify tensors
};

}  // namespace

thread_local bool FakeMode::on_ = false;

bool has_bytes(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()) < kNowhere; }

Stream make_fake_stream(Device device, int threads) { return Stream(std::make_shared<FakeStream>(device, threads)); }

}  // namespace ring
