#include "core/devices.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

// CUDA C++ Programming Guide, application compatibility: machine code runs on devices of its own generation with the
// same or a higher minor number; code for an architecture with a letter runs there and nowhere else.
TEST(Devices, MachineCodeRunsInItsGeneration) {
  EXPECT_TRUE(arch_runs_on("90a", 90));
  EXPECT_FALSE(arch_runs_on("90a", 100));
  EXPECT_FALSE(arch_runs_on("90a", 89));
  EXPECT_TRUE(arch_runs_on("80", 80));
  EXPECT_TRUE(arch_runs_on("80", 86));
  EXPECT_FALSE(arch_runs_on("86", 80));
  EXPECT_FALSE(arch_runs_on("80", 90));
  EXPECT_TRUE(arch_runs_on("100", 103));
  EXPECT_FALSE(arch_runs_on("", 90));
  EXPECT_FALSE(arch_runs_on("native", 90));
}

TEST(Devices, VersionsAreDecodedLikeTheLibraries) {
  EXPECT_EQ(from_number(91900), (Version{9, 19, 0}));
  EXPECT_EQ(from_number(22809), (Version{2, 28, 9}));
  EXPECT_EQ(from_number(130101), (Version{13, 1, 1}));
  EXPECT_EQ(from_cuda_number(13020), (Version{13, 2, 0}));
  EXPECT_EQ(to_string(Version{9, 14, 0}), "9.14.0");
  EXPECT_LT((Version{9, 9, 1}), (Version{9, 13, 0}));
}

TEST(Devices, DefectsAreKnownByVersion) {
  const auto refused = [](const Version& v) {
    for (const KnownDefect& d : known_defects("cuDNN", v))
      if (d.refused) return true;
    return false;
  };
  EXPECT_TRUE(refused({9, 10, 1}));
  EXPECT_TRUE(refused({9, 12, 9}));
  EXPECT_FALSE(refused({9, 13, 0}));
  EXPECT_FALSE(refused({9, 14, 0}));
  EXPECT_FALSE(known_defects("cuDNN", {9, 14, 0}).empty());
  EXPECT_TRUE(known_defects("cuDNN", {9, 19, 0}).empty());
  EXPECT_TRUE(known_defects("no such library", {1, 0, 0}).empty());
}

TEST(Devices, EveryDefectHasADescriptionAndASource) {
  for (const KnownDefect& d : all_known_defects()) {
    EXPECT_LT(d.from, d.fixed) << d.library;
    EXPECT_FALSE(d.what.empty() || d.remedy.empty() || d.source.empty()) << d.library;
  }
}

TEST(Devices, ABackendThatIsNotBuiltHasNoFacts) {
  const BackendFacts cpu = inspect_backend(Backend::cpu);
  EXPECT_TRUE(cpu.devices.empty() && cpu.libraries.empty() && cpu.problem.empty());
}

TEST(GpuDevices, FactsAgreeWithTheCount) {
  const int count = device_count(Backend::cuda);
  if (count == 0) GTEST_SKIP() << "no GPU";
  const BackendFacts facts = inspect_backend(Backend::cuda);
  EXPECT_EQ(facts.problem, "");
  ASSERT_EQ(facts.devices.size(), static_cast<std::size_t>(count));
  ASSERT_EQ(facts.links.size(), facts.devices.size());
  for (std::size_t i = 0; i < facts.devices.size(); ++i) {
    const DeviceFacts& d = facts.devices[i];
    EXPECT_EQ(d.problem, "");
    EXPECT_NE(d.name, "");
    EXPECT_GT(d.memory_free, 0u);
    EXPECT_LE(d.memory_free, d.memory_total);
    EXPECT_GE(d.capability, 50);
    EXPECT_EQ(facts.links[i][i], Link::self);
  }
}

}  // namespace
}  // namespace ring
