#include "core/numa.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/number_list.h"

namespace ring {
namespace {

// A machine on which only the files that a test writes exist.
class Numa : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  void write_machine(const std::string& nodes, const std::string& allowed, const std::string& near) const {
    write("sys/devices/system/node/has_memory", nodes + "\n");
    write("proc/self/status",
          "Name:\tringmaster\nMems_allowed:\t3\nMems_allowed_list:\t" + allowed + "\nThreads:\t1\n");
    write("sys/bus/pci/devices/0000:3b:00.0/numa_node", near + "\n");
  }
  std::optional<int> node(const std::string& bus = "0000:3B:00.0") const { return memory_node_of(bus, root_.string()); }

  const std::filesystem::path root_ = std::filesystem::temp_directory_path() / str("ringmaster-numa-", getpid());
};

TEST_F(Numa, AGpuIsNearTheNodeThatTheKernelReports) {
  write_machine("0-1", "0-1", "1");
  EXPECT_EQ(node(), 1);
  write_machine("0,2-3", "0-3", "0");
  EXPECT_EQ(node(), 0);
  EXPECT_FALSE(node("0000:5e:00.0")) << "no such device";
}

TEST_F(Numa, NoNodeIsPreferredIfOnlyOneCanBeUsed) {
  write_machine("0", "0", "0");
  EXPECT_FALSE(node());
  write_machine("0-1", "1", "1");
  EXPECT_FALSE(node()) << "this process may use one of them";
}

TEST_F(Numa, TheNodeIsUnknownIfTheFilesDoNotNameIt) {
  EXPECT_FALSE(node()) << "no files at all";
  write_machine("0-1", "0-1", "-1");
  EXPECT_FALSE(node());
  write_machine("0-1", "0-1", "garbage");
  EXPECT_FALSE(node());
  write_machine("0-2", "0,2", "1");
  EXPECT_FALSE(node()) << "this process may not use it";
  write_machine("x", "0-1", "1");
  EXPECT_FALSE(node());
  write_machine("1,2", "", "2");
  EXPECT_FALSE(node());
}

// A kernel without NUMA support, or a node that does not exist, leads to a refusal without any other effect.
TEST_F(Numa, PagesCanBeTouchedAfterAPreference) {
  const std::size_t bytes = std::size_t{1} << 20;
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (const int n : {0, 1, 900}) prefer_node(p, bytes, n);
  std::memset(p, 1, bytes);
  munmap(p, bytes);
}

TEST_F(Numa, WholeNumbersAreParsedStrictly) {
  EXPECT_EQ(parse_int("12"), 12);
  EXPECT_EQ(parse_int("-1"), -1);
  for (const char* bad : {"", "1x", " 1", "0x1", "99999999999"}) EXPECT_FALSE(parse_int(bad)) << bad;
}

}  // namespace
}  // namespace ring
