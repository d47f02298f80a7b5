// Tests which kernels an error message names, without a GPU.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/cuda/counter.h"
#include "core/cuda/launch_log.h"
#include "core/cuda/launches.h"
#include "core/devices.h"

namespace ring::cuda {
namespace {

constexpr bool kAll = false, kNewest = true;

cudaStream_t stream(std::uintptr_t n) { return reinterpret_cast<cudaStream_t>(16 * n); }  // never dereferenced

TEST(LaunchLog, NamesUnfinishedLaunchesOldestFirst) {
  LaunchLog log;
  EXPECT_EQ(log.describe_unfinished(kAll), "");
  log.add_call(stream(1), "norm");
  EXPECT_EQ(log.describe_unfinished(kAll), "The kernel that failed is norm");
  for (int i = 0; i < 2; ++i) log.add_call(stream(1), "product");
  log.add_call(stream(1), "norm");
  EXPECT_EQ(log.describe_unfinished(kAll), "One of 4 launches failed, oldest first: norm x 2, product x 2");
  EXPECT_EQ(log.describe_unfinished(kNewest), "The kernel that failed is norm");
}

TEST(LaunchLog, AnEventMarksEarlierLaunchesOfItsStreamOnly) {
  LaunchLog log;
  log.add_call(stream(1), "a");
  log.add_call(stream(2), "b");
  const std::uint64_t event = log.launch_count();
  EXPECT_EQ(event, 2u);
  log.add_call(stream(1), "c");
  log.add_call(stream(1), "d");
  log.mark_ended(stream(1), event);
  EXPECT_EQ(log.describe_unfinished(kAll), "One of 3 launches failed, oldest first: b, c, d");
  log.mark_ended(stream(1), 1);  // an older event that is queried later
  EXPECT_EQ(log.describe_unfinished(kAll), "One of 3 launches failed, oldest first: b, c, d");
  log.mark_ended(stream(2), log.launch_count());
  log.mark_ended(stream(1), log.launch_count());
  EXPECT_EQ(log.describe_unfinished(kAll), "");
  EXPECT_EQ(log.describe_unfinished(kNewest), "");
}

TEST(LaunchLog, IsBounded) {
  LaunchLog log;
  log.add_call(stream(1), "forgotten");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < LaunchLog::kMaxNames + 2; ++i) names.push_back("k" + std::to_string(i));
  for (std::uint64_t i = 0; i < LaunchLog::kMaxLaunches; ++i) log.add_call(stream(1), names[i % names.size()].c_str());
  const std::string text = log.describe_unfinished(kAll);
  EXPECT_EQ(text.find("forgotten"), std::string::npos) << text;
  EXPECT_NE(text.find("One of 4096 launches failed"), std::string::npos) << text;
  EXPECT_NE(text.find(", and 2 other kernels"), std::string::npos) << text;
}

TEST(LaunchLog, NamesAreShort) {
  EXPECT_EQ(short_kernel_name("void ring::cuda::sm90::sm90_forward<64, 2, true>(ring::cuda::sm90::ForwardParams)"),
            "sm90_forward<64, 2, true>");
  EXPECT_EQ(short_kernel_name("void ring::cuda::(anonymous namespace)::rope<__nv_bfloat16>(__nv_bfloat16*, int)"),
            "rope<__nv_bfloat16>");
  EXPECT_EQ(short_kernel_name("ring::cuda::(anonymous namespace)::add_one(unsigned int volatile*)"), "add_one");
  EXPECT_EQ(
      short_kernel_name("void ring::cuda::sm90::sm90_backward<(ring::Stationary)1, (int)64, (bool)0, (bool)1>(P)"),
      "sm90_backward<(Stationary)1, 64, 0, 1>");
  EXPECT_EQ(short_kernel_name("not_mangled"), "not_mangled");
}

// The version of nvcc decides which runtime function <<<>>> calls. Without a GPU the launch fails after it is logged.
TEST(LaunchLog, SeesLaunchesInChevrons) {
  if (device_count(Backend::cuda) > 0) GTEST_SKIP() << "with a GPU, GpuTrainingFaults tests this";
  const std::uint64_t before = launch_count();
  EXPECT_THROW(increment_counter(nullptr, nullptr), Error);
  EXPECT_EQ(launch_count(), before + 1);
}

}  // namespace
}  // namespace ring::cuda
