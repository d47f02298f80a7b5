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

Context poisoned_context(int threads) {
  Context ctx{Stream::cpu(threads)};
  ctx.stream.impl().allocator = std::make_shared<PoisonAllocator>();
  return ctx;
}

}  // namespace ring::test
