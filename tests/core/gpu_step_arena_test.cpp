// The step arena over a GPU stream's memory, and the cache of that memory.

#include <gtest/gtest.h>

#include <algorithm>

#include "core/devices.h"
#include "core/step_arena.h"
#include "core/tensor.h"
#include "model/scopes.h"

namespace ring {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

class GpuStepArena : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    stream = std::make_unique<Stream>(Stream::create({Backend::cuda, 0}));
    arena = std::make_shared<StepArena>(stream->allocator());
    stream->impl().allocator = arena;
  }
  Tensor make(std::size_t bytes) const { return Tensor::zeros({static_cast<std::int64_t>(bytes)}, DType::u8, *stream); }
  std::unique_ptr<Stream> stream;
  std::shared_ptr<StepArena> arena;
};

TEST_F(GpuStepArena, StepsRepeatInTheSamePlacesWithoutWaiting) {
  std::vector<std::vector<std::byte*>> addresses;
  std::uint64_t waits = 0;
  for (int i = 0; i < 8; ++i) {
    const StepScope scope(*arena);
    const Tensor kept = make(100 * kMebibyte);
    const Tensor early = make(30 * kMebibyte + 5);
    std::vector<std::byte*> at = {kept.raw(), early.raw()};
    for (std::size_t k = 1; k < 10; ++k) at.push_back(make(k * 7 * kMebibyte).raw());
    addresses.push_back(at);
    if (i == 3) waits = host_wait_count();
  }
  EXPECT_EQ(host_wait_count(), waits);
  EXPECT_TRUE(arena->has_slab());
  for (std::size_t i = 3; i < addresses.size(); ++i) EXPECT_EQ(addresses[i], addresses[2]);
  for (const std::byte* p : addresses.back()) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u);
  EXPECT_EQ(arena->num_fallbacks(), 0u);
  EXPECT_EQ(arena->num_upstream_blocks(), 0u);
}

TEST_F(GpuStepArena, ContentsOfLiveBlocksStay) {
  std::vector<float> host(1 << 20);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i);
  for (int i = 0; i < 6; ++i) {
    const StepScope scope(*arena);
    const Tensor temporary = make(3 * kMebibyte);
    const Tensor kept = from_host(host, *stream);
    for (std::size_t k = 0; k < 5; ++k) make((2 + k) * kMebibyte);
    if (i == 4) make(50 * kMebibyte);  // this step differs from the others
    EXPECT_EQ(to_host<float>(kept, *stream), host);
  }
}

TEST_F(GpuStepArena, TheSlabReplacesWhatWasRecorded) {
  stream->allocator()->trim();
  const std::size_t before = arena->stats().reserved;
  const std::size_t bytes = 512 * kMebibyte;
  for (int i = 0; i < 4; ++i) {
    const StepScope scope(*arena);
    make(bytes);
    make(bytes / 2);
    const Tensor a = make(bytes / 4), b = make(bytes / 2);
  }
  ASSERT_TRUE(arena->has_slab());
  EXPECT_EQ(arena->plan().bytes, bytes);
  EXPECT_LE(arena->stats().reserved, before + bytes + 64 * kMebibyte) << "recorded blocks stand beside the slab";
}

TEST_F(GpuStepArena, OutOfMemoryNamesThePhases) {
  arena->enter({scopes::parameters}, ScopePass::inference);
  const Tensor weights = make(20 * kMebibyte);
  arena->enter(block_scope(0), ScopePass::forward);
  const Tensor kept = make(10 * kMebibyte);
  try {
    Tensor::empty({std::int64_t{1} << 50}, DType::u8, *stream);
    ADD_FAILURE() << "there is no such memory";
  } catch (const OutOfMemory& e) {
    const std::string what = e.what();
    for (const char* part : {"on cuda:0", "1125899906842624 bytes requested", "31457280 in use", " reserved",
                             " of the device's ", "parameters 20.0 MiB, blocks.0 10.0 MiB"})
      EXPECT_NE(what.find(part), std::string::npos) << part << " is not in: " << what;
  }
  EXPECT_EQ(arena->stats().in_use, 30 * kMebibyte);
}

TEST_F(GpuStepArena, FreedBlocksAreReusedAtOnce) {
  Allocator& pool = *arena->upstream();
  void* a = pool.allocate(3 * kMebibyte);
  pool.free(a, 3 * kMebibyte);
  void* b = pool.allocate(3 * kMebibyte - 1);
  EXPECT_EQ(a, b) << "of the same class";
  pool.free(b, 3 * kMebibyte - 1);
  pool.trim();
  EXPECT_EQ(pool.stats().in_use, 0u);
}

}  // namespace
}  // namespace ring
