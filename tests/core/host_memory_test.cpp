// Bounds of host memory, read from file trees like the kernel's /proc and /sys.
#include "core/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ring {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

class HostMemory : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("ringmaster-memory-" + std::to_string(getpid()));
    write("/proc/meminfo",
          "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB\n"
          "SwapTotal:       4194304 kB\nSwapFree:        2097152 kB\nHugePages_Total:       0\n");
    write("/proc/self/status", "Name:\tringmaster\nVmSize:\t 1048576 kB\nVmData:\t  524288 kB\n");
    write("/proc/self/limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max data size             unlimited            unlimited            bytes     \n"
          "Max address space         unlimited            unlimited            bytes     \n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_.string() + path).substr(0, (root_.string() + path).rfind('/')));
    std::ofstream(root_.string() + path) << text;
  }
  void unified(const std::string& group) const {
    write("/proc/self/cgroup", "0::" + group + "\n");
    write("/proc/self/mountinfo",
          "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
          "31 20 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  MemoryBound bound() const { return tightest_bound(memory_bounds(root_.string())); }

  fs::path root_;
};

TEST_F(HostMemory, WithoutLimitsTheMachineIsTheBound) {
  const MemoryBound b = bound();
  EXPECT_EQ(b.source, "MemAvailable in /proc/meminfo");
  EXPECT_EQ(b.total, 64 * kGiB);
  EXPECT_EQ(b.available, 32 * kGiB);
  EXPECT_EQ(b.swap, 2 * kGiB);
  EXPECT_FALSE(b.of_process);
}

TEST_F(HostMemory, AGroupOfVersionTwoCountsWithoutItsCaches) {
  unified("/job/step");
  const std::string job = "/sys/fs/cgroup/job";
  write(job + "/memory.max", "8589934592\n");
  write(job + "/memory.current", "6442450944\n");
  write(job + "/memory.stat", "anon 2147483648\nfile 4294967296\ninactive_file 3221225472\nactive_file 1073741824\n");
  write(job + "/memory.swap.max", "0\n");
  write(job + "/step/memory.max", "max\n");
  const MemoryBound b = bound();
  EXPECT_EQ(b.source, "/sys/fs/cgroup/job/memory.max");
  EXPECT_EQ(b.total, 8 * kGiB);
  EXPECT_EQ(b.available, 6 * kGiB);
  EXPECT_EQ(b.swap, 0u);
}

TEST_F(HostMemory, EveryLevelCountsAndSoDoesTheSoftLimit) {
  unified("/a/b/c");
  write("/sys/fs/cgroup/a/memory.max", "5368709120\n");
  write("/sys/fs/cgroup/a/memory.current", "0\n");
  write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  write("/sys/fs/cgroup/a/b/c/memory.high", "3221225472\n");
  write("/sys/fs/cgroup/a/b/c/memory.current", "1073741824\n");
  write("/sys/fs/cgroup/a/b/c/memory.swap.max", "0\n");
  EXPECT_EQ(memory_bounds(root_.string()).size(), 3u);
  EXPECT_EQ(bound().source, "/sys/fs/cgroup/a/b/c/memory.high");
  EXPECT_EQ(bound().limit(), 2 * kGiB);
  write("/sys/fs/cgroup/a/memory.current", "5368709120\n");  // all of it is used by others
  write("/sys/fs/cgroup/a/memory.swap.max", "0\n");
  EXPECT_EQ(bound().source, "/sys/fs/cgroup/a/memory.max");
  EXPECT_EQ(bound().limit(), 0u);
}

// Groups as SLURM makes them with cgroup v1, then as a container sees them whose mount begins at its own group.
TEST_F(HostMemory, AGroupOfVersionOneCounts) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/slurm/uid_0/job_7\n0::/\n");
  const std::string limits = "/sys/fs/cgroup/memory", job = limits + "/slurm/uid_0/job_7";
  const auto mounted_at = [&](const std::string& from) {
    write("/proc/self/mountinfo", "35 31 0:32 " + from + " " + limits + " rw,relatime - cgroup cgroup rw,memory\n");
  };
  mounted_at("/");
  write(limits + "/memory.limit_in_bytes", "9223372036854771712\n");
  write(job + "/memory.limit_in_bytes", "4294967296\n");
  write(job + "/memory.usage_in_bytes", "3221225472\n");
  write(job + "/memory.stat", "cache 1\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
  EXPECT_EQ(bound().source, job + "/memory.limit_in_bytes");
  EXPECT_EQ(bound().available, 2 * kGiB);
  EXPECT_EQ(bound().swap, 2 * kGiB);
  write(job + "/memory.memsw.limit_in_bytes", "4294967296\n");
  write(job + "/memory.memsw.usage_in_bytes", "4294967296\n");
  EXPECT_EQ(bound().limit(), kGiB);

  mounted_at("/slurm/uid_0/job_7");
  write(limits + "/memory.limit_in_bytes", "536870912\n");
  write(limits + "/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(bound().source, limits + "/memory.limit_in_bytes");
  EXPECT_EQ(bound().available, kGiB / 2);
}

TEST_F(HostMemory, LimitsOfTheProcessCount) {
  write("/proc/self/limits",
        "Max data size             2147483648           unlimited            bytes     \n"
        "Max address space         4294967296           8589934592           bytes     \n");
  const std::vector<MemoryBound> all = memory_bounds(root_.string());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].available, 3 * kGiB);
  EXPECT_TRUE(all[1].of_process);
  EXPECT_EQ(bound().source, "the data size limit (ulimit -d)");
  EXPECT_EQ(bound().limit(), 3 * kGiB / 2);
}

TEST_F(HostMemory, TheMountStandsForAGroupThatIsNotVisible) {
  unified("/somewhere/else");
  write("/sys/fs/cgroup/memory.max", "1073741824\n");
  write("/sys/fs/cgroup/memory.current", "garbage\n");
  EXPECT_EQ(bound().source, "/sys/fs/cgroup/memory.max");
  EXPECT_EQ(bound().available, kGiB);
}

TEST(HostMemoryHere, IsPositiveAndAtMostTheTotal) {
  const std::vector<MemoryBound> all = memory_bounds();
  EXPECT_GT(all.front().total, kGiB / 16);
  for (const MemoryBound& b : all) EXPECT_LE(b.available, b.total) << b.source;
  EXPECT_GT(tightest_bound(all).limit(), 0u);
}

}  // namespace
}  // namespace ring
