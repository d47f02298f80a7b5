#include "tests/kernels/poison_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace ring::test {
namespace {

constexpr std::size_t kGuard = 64;
constexpr unsigned char kGuardByte = 0x5A, kPoisonByte = 0xFF;

bool intact(const unsigned char* p) {
  return std::all_of(p, p + kGuard, [](unsigned char b) { return b == kGuardByte; });
}

class DevicePoisonAllocator final : public Allocator {
 public:
  explicit DevicePoisonAllocator(const Stream& stream) : inner_(stream.allocator()), stream_(stream.impl()) {}

  void* allocate(std::size_t bytes) override {
    std::vector<unsigned char> host(bytes + 2 * kGuard, kGuardByte);
    std::fill_n(host.begin() + kGuard, bytes, kPoisonByte);
    auto* p = static_cast<unsigned char*>(inner_->allocate(host.size()));
    stream_.copy(p, host.data(), host.size());
    return p + kGuard;
  }
  void free(void* data, std::size_t bytes) override {
    auto* p = static_cast<unsigned char*>(data) - kGuard;
    unsigned char before[kGuard], after[kGuard];
    stream_.copy(before, p, kGuard);
    stream_.copy(after, p + kGuard + bytes, kGuard);
    stream_.synchronize();
    EXPECT_TRUE(intact(before)) << "bytes before a tensor of " << bytes << " bytes were written";
    EXPECT_TRUE(intact(after)) << "bytes after a tensor of " << bytes << " bytes were written";
    inner_->free(p, bytes + 2 * kGuard);
  }
  MemoryStats stats() const override { return inner_->stats(); }
  void reset_peak() override { inner_->reset_peak(); }

 private:
  std::shared_ptr<Allocator> inner_;
  StreamImpl& stream_;  // outlives the tensors of a test
};

}  // namespace

void* PoisonAllocator::allocate(std::size_t bytes) {
  const std::size_t whole = (bytes + 2 * kGuard + 63) / 64 * 64;
  auto* p = static_cast<unsigned char*>(std::aligned_alloc(64, whole));
  if (!p) fail("out of memory in a test: ", bytes, " bytes");
  std::memset(p, kGuardByte, whole);
  std::memset(p + kGuard, kPoisonByte, bytes);
  stats_.in_use += bytes;
  stats_.peak = std::max(stats_.peak, stats_.in_use);
  return p + kGuard;
}

void PoisonAllocator::free(void* p, std::size_t bytes) {
  auto* data = static_cast<unsigned char*>(p);
  EXPECT_TRUE(intact(data - kGuard)) << "bytes before a tensor of " << bytes << " bytes were written";
  EXPECT_TRUE(intact(data + bytes)) << "bytes after a tensor of " << bytes << " bytes were written";
  stats_.in_use -= bytes;
  std::free(data - kGuard);
}

ExecContext poisoned_context(int threads) {
  ExecContext ctx{Stream::cpu(threads)};
  ctx.stream.impl().allocator = std::make_shared<PoisonAllocator>();
  return ctx;
}

ExecContext poisoned_device_context(Device device) {
  ExecContext ctx{Stream::create(device)};
  ctx.stream.impl().allocator = std::make_shared<DevicePoisonAllocator>(ctx.stream);
  return ctx;
}

}  // namespace ring::test
