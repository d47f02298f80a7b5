#include "core/cpu/pool_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace ring {
namespace {

TEST(PoolAllocator, SizeClassesFitAndWasteAtMostAnEighth) {
  std::size_t previous = 0;
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 36); bytes += 1 + bytes / 97) {
    const std::size_t size = PoolAllocator::size_class(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_EQ(size % 64, 0u);
    EXPECT_GE(size, previous);
    EXPECT_EQ(PoolAllocator::size_class(size), size);
    if (bytes >= 256) {
      EXPECT_LE(size - bytes, std::max<std::size_t>(63, bytes / 8)) << bytes;
    }
    EXPECT_LT(size - bytes, std::size_t{2} << 20) << bytes;
    previous = size;
  }
}

TEST(PoolAllocator, TrimReturnsUnusedMemory) {
  PoolAllocator pool;
  void* held = pool.allocate(5000);
  for (std::size_t bytes : {100u, 3000u, 3000u, 70000u}) pool.free(pool.allocate(bytes), bytes);
  EXPECT_GT(pool.stats().reserved, 70000u);
  pool.trim();
  EXPECT_EQ(pool.stats().reserved, PoolAllocator::size_class(5000));
  EXPECT_EQ(pool.stats().in_use, 5000u);
  pool.free(held, 5000);
}

TEST(PoolAllocator, MemoryIsAlignedAndWritable) {
  PoolAllocator pool;
  for (std::size_t bytes : {1u, 63u, 64u, 1000u, 1u << 20}) {
    auto* p = static_cast<unsigned char*>(pool.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0u);
    p[0] = p[bytes - 1] = 42;
    EXPECT_EQ(p[0], 42);
    pool.free(p, bytes);
  }
}

TEST(PoolAllocator, ReusesABlockOfTheSameClass) {
  PoolAllocator pool;
  void* a = pool.allocate(1000);
  pool.free(a, 1000);
  void* b = pool.allocate(1001);  // the same size class as 1000
  EXPECT_EQ(a, b);
  void* c = pool.allocate(1000);
  EXPECT_NE(b, c);
  pool.free(b, 1001);
  pool.free(c, 1000);
}

TEST(PoolAllocator, CountsBytesInUseTheirPeakAndBytesHeld) {
  PoolAllocator pool;
  void* a = pool.allocate(5000);
  void* b = pool.allocate(3000);
  EXPECT_EQ(pool.stats().in_use, 8000u);
  pool.free(a, 5000);
  EXPECT_EQ(pool.stats().in_use, 3000u);
  EXPECT_EQ(pool.stats().peak, 8000u);
  EXPECT_EQ(pool.stats().reserved, PoolAllocator::size_class(5000) + PoolAllocator::size_class(3000));
  pool.reset_peak();
  EXPECT_EQ(pool.stats().peak, 3000u);
  pool.free(b, 3000);
  EXPECT_EQ(pool.stats().in_use, 0u);
}

TEST(PoolAllocator, HoldsNoMoreThanItsBound) {
  PoolAllocator pool(4096);
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(pool.allocate(1024));
  for (void* p : blocks) pool.free(p, 1024);
  EXPECT_EQ(pool.stats().in_use, 0u);
  EXPECT_EQ(pool.stats().reserved, 4096u);
}

TEST(PoolAllocator, AFailureSaysHowMuchWasAskedFor) {
  PoolAllocator pool;
  void* held = pool.allocate(777);
  for (std::size_t bytes : {std::size_t{1} << 60, std::numeric_limits<std::size_t>::max()}) try {
      pool.allocate(bytes);
      ADD_FAILURE() << "allocated " << bytes;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(str("out of memory: ", bytes, " bytes requested, 777 in use")),
                std::string::npos)
          << e.what();
    }
  EXPECT_EQ(pool.stats().in_use, 777u);
  EXPECT_EQ(pool.stats().reserved, PoolAllocator::size_class(777));
  pool.free(held, 777);
}

TEST(PoolAllocator, ServesSeveralThreads) {
  PoolAllocator pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        const std::size_t bytes = 64 + static_cast<std::size_t>(i * 37 % 900);
        auto* p = static_cast<unsigned char*>(pool.allocate(bytes));
        for (std::size_t k = 0; k < bytes; ++k) p[k] = static_cast<unsigned char>(t);
        for (std::size_t k = 0; k < bytes; ++k)
          if (p[k] != t) ADD_FAILURE() << "another thread wrote into this block";
        pool.free(p, bytes);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(pool.stats().in_use, 0u);
}

}  // namespace
}  // namespace ring
