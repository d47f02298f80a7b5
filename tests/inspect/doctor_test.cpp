#include "inspect/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "generated/build_info.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

HostFacts good_host() {
  return {.cores = 8,
          .threads = 8,
          .memory_total = 64 * kGiB,
          .memory_available = 32 * kGiB,
          .folder = "/data",
          .disk_free = 100 * kGiB,
          .writable = true};
}

LibraryFacts library(const std::string& name, Version version) {
  return {.name = name, .use = "something", .found = true, .version = version, .detail = "/lib/" + name};
}

BackendFacts two_gpus() {
  BackendFacts facts;
  facts.libraries = {library("cuDNN", {9, 19, 0})};
  for (int i = 0; i < 2; ++i)
    facts.devices.push_back({.device = {Backend::cuda, i},
                             .name = "Test GPU",
                             .memory_total = 80 * kGiB,
                             .memory_free = 79 * kGiB,
                             .capability = 90});
  facts.links = {{Link::self, Link::fast}, {Link::fast, Link::self}};
  return facts;
}

std::vector<Finding> judge(const BackendFacts& facts, std::string_view archs = "90a") {
  return check_cuda(facts, {true, archs}, good_host());
}

std::int64_t count(const std::vector<Finding>& findings, Verdict verdict) {
  return std::ranges::count(findings, verdict, &Finding::verdict);
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in\n" << text;
}

TEST(Doctor, AGoodMachineHasOnlyGoodFindings) {
  EXPECT_EQ(count(check_host(good_host()), Verdict::good), 3);
  const auto findings = judge(two_gpus());
  EXPECT_EQ(count(findings, Verdict::good), static_cast<std::int64_t>(findings.size()));
  EXPECT_TRUE(is_healthy(findings));
  expect_parts(findings_table(findings),
               {"cuDNN", "9.19.0", "cuda:1", "Test GPU", "79.0 GiB of 80.0 GiB free", "self  NVLink", "Nothing here"});
}

TEST(Doctor, LittleMemoryOrDiskIsANoteAndNoneIsAStop) {
  HostFacts host = good_host();
  host.memory_available = kGiB / 2;
  host.disk_free = kGiB / 2;
  EXPECT_EQ(count(check_host(host), Verdict::note), 2);
  EXPECT_TRUE(is_healthy(check_host(host)));
  host.memory_available = kGiB / 8;
  host.disk_free = kGiB / 64;
  EXPECT_EQ(count(check_host(host), Verdict::stop), 2);
  host = good_host();
  host.writable = false;
  EXPECT_FALSE(is_healthy(check_host(host)));
  expect_parts(findings_table(check_host(host)),
               {"STOP  disk", "cannot write to /data", "run.directory", "1 thing here"});
}

TEST(Doctor, TheSmallestLimitIsNamed) {
  HostFacts host = good_host();
  expect_parts(findings_table(check_host(host)), {"32.0 GiB of 64.0 GiB available\n"});
  host.memory_available = kGiB / 8;
  host.swap_available = 2 * kGiB;
  host.memory_limit = "/sys/fs/cgroup/job/memory.max";
  expect_parts(findings_table(check_host(host)), {"128 MiB of 64.0 GiB available", "2.0 GiB of swap",
                                                  "limited by /sys/fs/cgroup/job/memory.max", "raise that limit"});
}

TEST(Doctor, NamesTheMemoryThatAGpuIsNearTo) {
  BackendFacts facts = two_gpus();
  EXPECT_EQ(findings_table(judge(facts)).find("NUMA"), std::string::npos) << "there is one";
  facts.devices[1].memory_node = 1;
  expect_parts(findings_table(judge(facts)), {"near NUMA node 1"});
}

TEST(Doctor, CodeForAnotherGpuIsAStop) {
  const auto findings = judge(two_gpus(), "80 100a");
  EXPECT_EQ(count(findings, Verdict::stop), 2);
  expect_parts(findings_table(findings),
               {"compute capability 9.0", "sm_80, sm_100a", "-DRING_CUDA_ARCHS=90", "2 things here"});
}

TEST(Doctor, ASickGpuAndAnOldDriverAreStops) {
  BackendFacts facts = two_gpus();
  facts.devices[1].problem = "uncorrectable ECC error";
  EXPECT_EQ(count(judge(facts), Verdict::stop), 1);
  expect_parts(findings_table(judge(facts)), {"uncorrectable ECC error", "nvidia-smi"});
  BackendFacts old;
  old.problem = "the driver is too old for CUDA 13";
  EXPECT_FALSE(is_healthy(judge(old)));
  expect_parts(findings_table(judge(old)), {"too old for CUDA 13", "update the driver"});
}

TEST(Doctor, BadVersionsNameTheirSource) {
  BackendFacts facts = two_gpus();
  facts.libraries = {library("cuDNN", {9, 10, 0}), library("NCCL", {2, 28, 3})};
  const auto findings = judge(facts);
  EXPECT_TRUE(is_healthy(findings));  // Ringmaster's own kernels replace cuDNN
  EXPECT_GE(count(findings, Verdict::note), 2);
  expect_parts(findings_table(findings), {"9.10.0 is not used", "NVIDIA/cudnn-frontend", "Install cuDNN 9.13 or newer",
                                          "2.28.3", "nvidia-resiliency-ext"});
}

TEST(Doctor, MissingLibrariesMatterOnlyWithAGpu) {
  BackendFacts facts = two_gpus();
  facts.libraries = {{.name = "cuDNN", .use = "attention", .detail = "install nvidia-cudnn-cu13"},
                     {.name = "CUDA runtime", .use = "GPUs", .needed = true}};
  EXPECT_EQ(count(judge(facts), Verdict::note), 1);
  EXPECT_EQ(count(judge(facts), Verdict::stop), 1);
  facts.devices.clear();
  facts.links.clear();
  EXPECT_TRUE(is_healthy(judge(facts)));
  EXPECT_EQ(count(judge(facts), Verdict::note), 0);
  expect_parts(findings_table(judge(facts)), {"training runs on the CPU"});
}

TEST(Doctor, GpusWithoutALinkAndABusyOneAreNotes) {
  BackendFacts facts = two_gpus();
  facts.links[0][1] = facts.links[1][0] = Link::none;
  facts.devices[0].memory_free = 10 * kGiB;
  EXPECT_EQ(count(judge(facts), Verdict::note), 3);
  expect_parts(findings_table(judge(facts)), {"self  host", "nvidia-smi topo -m", "another process uses this GPU"});
}

TEST(Doctor, ABuildWithoutCudaOnAMachineWithADriver) {
  HostFacts host = good_host();
  EXPECT_EQ(count(check_cuda({}, {}, host), Verdict::absent), 1);
  host.nvidia_driver = true;
  EXPECT_EQ(count(check_cuda({}, {}, host), Verdict::note), 1);
  EXPECT_TRUE(is_healthy(check_cuda({}, {}, host)));
}

TEST(Doctor, CountsTheChoicesOfEachGpuModel) {
  const ChoiceFacts facts{.store = "/c/choices.yaml",
                          .stored = {"matmul, Test GPU, 1x1x1", "matmul, Other GPU, 1x1x1"},
                          .shipped = {"attention, Test GPU, a", "attention, Test GPU, b", "attention, Other GPU, a"}};
  const auto findings = check_choices(two_gpus(), facts);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].detail, "Test GPU: 2 in this program's tables, 1 in /c/choices.yaml");
  EXPECT_EQ(findings[0].verdict, Verdict::good);
  EXPECT_TRUE(check_choices({}, facts).empty());
}

TEST(Doctor, ADamagedStoreOfChoicesIsAStopAndNoneIsANote) {
  const auto damaged = check_choices(two_gpus(), {.store = "/c/choices.yaml", .problem = "the hash does not fit"});
  EXPECT_FALSE(is_healthy(damaged));
  expect_parts(findings_table(damaged), {"the hash does not fit", "delete /c/choices.yaml"});
  const auto none = check_choices(two_gpus(), {});
  EXPECT_TRUE(is_healthy(none));
  EXPECT_EQ(count(none, Verdict::note), 1);
}

TEST(Doctor, HostFactsDescribeThisMachine) {
  const HostFacts host = inspect_host(".");
  EXPECT_GE(host.cores, 1);
  EXPECT_GT(host.memory_total, kGiB / 16);
  EXPECT_LE(host.memory_available, host.memory_total);
  EXPECT_GT(host.disk_free, 0u);
  EXPECT_TRUE(host.folder.is_absolute());
  EXPECT_FALSE(inspect_host("/no/such/folder").writable);
}

TEST(Doctor, TheProgramReportsThisMachine) {
  const test::Finished done = test::run_process({test::ring_binary(), "doctor"});
  expect_parts(done.output, {str("Ringmaster ", build_info::kVersion), "cores", "memory", "disk",
                             std::filesystem::current_path().string(), "HDF5", "SentencePiece", "Gloo", "oneDNN"});
  const std::string version = test::run_process({test::ring_binary(), "--version"}).output;
  expect_parts(done.output, {version.substr(version.find(' '), version.find('\n') - version.find(' ') + 1)});
  for (const build_info::Found& f : build_info::kFound) expect_parts(done.output, {f.name});
  const bool stops = done.output.find("STOP") != std::string::npos;
  EXPECT_EQ(done.code, stops ? 1 : 0) << done.output;
  if (device_count(Backend::cuda) == 0) expect_parts(done.output, {"training runs on the CPU"});
  if (build_info::kCuda) expect_parts(done.output, {"CUDA runtime", "cuBLAS", "cuDNN", "NCCL"});
}

}  // namespace
}  // namespace ring
