#include "core/host_slabs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "core/storage.h"

namespace ring {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(HostSlabs, TheSameOrderGetsTheSameAddresses) {
  HostSlabs slabs(Stream::cpu(1), 1024 * kMiB);
  const std::vector<std::size_t> sizes = {5 * kMiB, 200 * kMiB, 1, 100 * kMiB, 60 * kMiB, 64 * kMiB + 1, 7};
  std::vector<std::byte*> first;
  for (const std::size_t n : sizes) {
    first.push_back(slabs.allocate(n));
    std::memset(first.back(), 1, 1);
    std::memset(first.back() + n - 1, 1, 1);
  }
  EXPECT_EQ(std::set<std::byte*>(first.begin(), first.end()).size(), sizes.size());
  const std::size_t held = slabs.held();
  for (int pass = 0; pass < 2; ++pass) {
    slabs.reset();
    for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(slabs.allocate(sizes[i]), first[i]) << i;
    EXPECT_EQ(slabs.held(), held);
  }
}

TEST(HostSlabs, PiecesDoNotOverlap) {
  HostSlabs slabs(Stream::cpu(1), 16 * kMiB);
  std::vector<std::byte*> taken;
  for (int i = 0; i < 100; ++i) {
    taken.push_back(slabs.allocate(1000));
    std::memset(taken.back(), i, 1000);
  }
  for (int i = 0; i < 100; ++i)
    for (int at = 0; at < 1000; ++at) ASSERT_EQ(static_cast<int>(taken[i][at]), i);
}

TEST(HostSlabs, NeverHoldMoreThanTheirLimit) {
  HostSlabs slabs(Stream::cpu(1), 10 * kMiB);
  EXPECT_EQ(slabs.allocate(11 * kMiB), nullptr);
  EXPECT_EQ(slabs.held(), 0u);
  EXPECT_NE(slabs.allocate(6 * kMiB), nullptr);
  EXPECT_EQ(slabs.allocate(5 * kMiB), nullptr);
  EXPECT_NE(slabs.allocate(4 * kMiB), nullptr);
  EXPECT_EQ(slabs.allocate(1), nullptr);
  EXPECT_EQ(slabs.held(), 10 * kMiB);
  slabs.reset();
  EXPECT_NE(slabs.allocate(10 * kMiB), nullptr);
}

TEST(HostSlabs, ReservedMemoryIsUsedFirst) {
  HostSlabs slabs(Stream::cpu(1), 20 * kMiB);
  slabs.reserve(12 * kMiB);
  EXPECT_EQ(slabs.held(), 12 * kMiB);
  std::byte* const first = slabs.allocate(5 * kMiB);
  EXPECT_EQ(slabs.allocate(7 * kMiB), first + 5 * kMiB);
  EXPECT_EQ(slabs.held(), 12 * kMiB);
  EXPECT_NE(slabs.allocate(1), nullptr) << "more than that is taken as it is needed";
  slabs.reserve(100 * kMiB);
  EXPECT_EQ(slabs.held(), 20 * kMiB) << "but no more than the limit";
  slabs.reserve(1);
  EXPECT_EQ(slabs.held(), 20 * kMiB);
}

TEST(HostSlabs, AFailureNamesHostMemory) {
  HostSlabs slabs(Stream::cpu(1), std::size_t{1} << 60);
  try {
    slabs.allocate(std::size_t{1} << 59);
    FAIL() << "half of an exabyte";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(e.facts.find("host memory"), std::string::npos) << e.facts;
  }
}

}  // namespace
}  // namespace ring
