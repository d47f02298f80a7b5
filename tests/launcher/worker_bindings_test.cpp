// The cores and nodes that workers are bound to, on machines made of files.

#include "launcher/worker_bindings.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "launcher/cpu_binding.h"
#include "tests/error_of.h"
#include "tests/launcher/scratch.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<int>;

// A typical server: two sockets with `nodes_per_socket` NUMA nodes each. Each node has `cores` physical cores of two
// threads; the second threads are numbered after all first threads. Four physical cores share a cache. GPUs are near
// the nodes that tests choose.
class Places : public test::ScratchTest {
 protected:
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((dir_ / file).parent_path());
    std::ofstream(dir_ / file) << text << "\n";
  }
  void build(int nodes_per_socket, int cores) {
    const int nodes = 2 * nodes_per_socket, physical = nodes * cores;
    write("sys/devices/system/node/online", str("0-", nodes - 1));
    write("sys/devices/system/cpu/online", str("0-", 2 * physical - 1));
    for (int node = 0; node < nodes; ++node) {
      const int first = node * cores, last = first + cores - 1;
      write(str("sys/devices/system/node/node", node, "/cpulist"),
            str(first, "-", last, ",", first + physical, "-", last + physical));
    }
    for (int n = 0; n < 2 * physical; ++n) {
      const int core = n % physical, cache = core / 4 * 4;
      const std::string cpu = str("sys/devices/system/cpu/cpu", n);
      write(cpu + "/topology/physical_package_id", str(core / (cores * nodes_per_socket)));
      write(cpu + "/topology/thread_siblings_list", str(core, ",", core + physical));
      write(cpu + "/cache/index0/level", "1");
      write(cpu + "/cache/index0/shared_cpu_list", str(core, ",", core + physical));
      write(cpu + "/cache/index3/level", "3");
      write(cpu + "/cache/index3/shared_cpu_list",
            str(cache, "-", cache + 3, ",", cache + physical, "-", cache + 3 + physical));
    }
  }
  void add_gpu(const std::string& bus, int node, const std::string& uuid, const std::string& model = "NVIDIA H200") {
    std::string upper = bus;
    for (char& c : upper) c = static_cast<char>(std::toupper(c));
    write("proc/driver/nvidia/gpus/" + upper + "/information",
          "Model: \t\t " + model + "\nIRQ:   \t\t 99\nGPU UUID: \t " + uuid + "\nBus Location: \t " + upper);
    write("sys/bus/pci/devices/" + bus + "/numa_node", str(node));
  }
  // Builds a machine with eight GPUs, four near each of two nodes with 8 physical cores: 0-7,16-23 and 8-15,24-31.
  void build_dgx() {
    build(1, 8);
    const char* const buses[] = {"0a", "18", "3b", "44", "87", "90", "b8", "c1"};
    for (int i = 0; i < 8; ++i) add_gpu(str("0000:", buses[i], ":00.0"), i / 4, str("GPU-", i, "f00"));
  }
  std::vector<WorkerBinding> places(NumaBinding binding, int workers, const Environment& env = {},
                                    Numbers allowed = {}) {
    const Machine machine = read_machine(dir_);
    if (allowed.empty())
      for (const Core& c : machine.cores) allowed.push_back(c.number);
    return choose_bindings(machine, {binding, workers, allowed, visible_gpus(machine.gpus, env)});
  }
  static std::string cores(const WorkerBinding& p) { return format_number_list(p.cores); }
};

TEST_F(Places, WorkersAreNearTheirGpus) {
  build_dgx();
  for (const NumaBinding binding : {NumaBinding::automatic, NumaBinding::node}) {
    const std::vector<WorkerBinding> all = places(binding, 8);
    for (std::size_t w = 0; w < 8; ++w) {
      EXPECT_EQ(cores(all[w]), w < 4 ? "0-7,16-23" : "8-15,24-31") << w;
      EXPECT_EQ(all[w].nodes, Numbers{w < 4 ? 0 : 1}) << w;
      EXPECT_EQ(all[w].threads(), 4) << "16 cores for four workers";
    }
    EXPECT_EQ(describe_bindings(all, 8),
              (std::vector<std::string>{"ranks 8-11 on GPUs 0-3: cores 0-7,16-23 of NUMA node 0",
                                        "ranks 12-15 on GPUs 4-7: cores 8-15,24-31 of NUMA node 1"}));
  }
  EXPECT_EQ(describe_bindings(places(NumaBinding::automatic, 1), 0),
            (std::vector<std::string>{"rank 0 on GPU 0: cores 0-7,16-23 of NUMA node 0"}));
}

TEST_F(Places, VisibleDevicesAreCounted) {
  build_dgx();
  const auto nodes = [&](const std::string& visible, int workers) {
    Numbers nodes;
    for (const WorkerBinding& p : places(NumaBinding::automatic, workers, {{"CUDA_VISIBLE_DEVICES", visible}}))
      nodes.push_back(p.nodes.empty() ? -1 : p.nodes.front());
    return nodes;
  };
  EXPECT_EQ(nodes("7,0", 2), (Numbers{1, 0}));
  EXPECT_EQ(nodes("GPU-5f00,GPU-1", 2), (Numbers{1, 0})) << "the beginning of a UUID is enough";
  EXPECT_EQ(nodes("4,5,9,0", 2), (Numbers{1, 1}));
  EXPECT_EQ(visible_gpus(read_machine(dir_).gpus, {{"CUDA_VISIBLE_DEVICES", "4,5,9,0"}})->size(), 2u)
      << "as CUDA: those before the first that is not there";
  EXPECT_EQ(nodes("", 2), (Numbers{0, 1})) << "no GPU: spread over the nodes";
  EXPECT_EQ(nodes("MIG-abc", 1), (Numbers{-1})) << "not known";
}

TEST_F(Places, DifferentModelsAreNumberedByBusOnlyIfTheVariableSaysSo) {
  build_dgx();
  add_gpu("0000:01:00.0", 1, "GPU-slow", "NVIDIA T400");
  EXPECT_FALSE(visible_gpus(read_machine(dir_).gpus, {}));
  EXPECT_TRUE(places(NumaBinding::automatic, 1)[0].cores.empty());
  EXPECT_NE(error_of([&] { places(NumaBinding::node, 1); }).find("CUDA_DEVICE_ORDER=PCI_BUS_ID"), std::string::npos);
  EXPECT_EQ(places(NumaBinding::node, 1, {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}})[0].nodes, Numbers{1});
}

TEST_F(Places, TorchrunsOtherModesAreSupported) {
  build_dgx();
  const std::vector<WorkerBinding> exclusive = places(NumaBinding::exclusive, 8);
  EXPECT_EQ(cores(exclusive[0]), "0-1,16-17");
  EXPECT_EQ(cores(exclusive[3]), "6-7,22-23");
  EXPECT_EQ(cores(exclusive[4]), "8-9,24-25");
  EXPECT_EQ(exclusive[4].threads(), 4);
  const std::vector<WorkerBinding> complex = places(NumaBinding::core_complex, 8);
  EXPECT_EQ(cores(complex[0]), "0-3,16-19");
  EXPECT_EQ(cores(complex[1]), "4-7,20-23");
  EXPECT_EQ(cores(complex[2]), "0-3,16-19") << "two complexes for four workers";
  EXPECT_EQ(complex[2].threads(), 4);
  EXPECT_EQ(cores(complex[7]), "12-15,28-31");
}

TEST_F(Places, ASocketMayHaveSeveralNodes) {
  build(2, 4);
  add_gpu("0000:0a:00.0", 1, "GPU-a");
  const WorkerBinding node = places(NumaBinding::node, 1)[0], socket = places(NumaBinding::socket, 1)[0];
  EXPECT_EQ(cores(node), "4-7,20-23");
  EXPECT_EQ(cores(socket), "0-7,16-23");
  EXPECT_EQ(socket.nodes, (Numbers{0, 1}));
}

TEST_F(Places, OnCpusWorkersAreSpreadOverAllCores) {
  build(2, 4);  // four nodes
  EXPECT_TRUE(places(NumaBinding::automatic, 1)[0].cores.empty()) << "it has all cores anyway";
  EXPECT_EQ(places(NumaBinding::node, 1)[0].nodes, (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(places(NumaBinding::automatic, 2)[1].nodes, (Numbers{2, 3}));
  EXPECT_EQ(places(NumaBinding::automatic, 8)[3].nodes, Numbers{1});
  EXPECT_EQ(places(NumaBinding::automatic, 8)[3].threads(), 4);
  EXPECT_TRUE(places(NumaBinding::automatic, 3)[0].cores.empty()) << "one of them would have more cores";
  EXPECT_EQ(places(NumaBinding::node, 3)[2].nodes, (Numbers{2, 3}));
}

TEST_F(Places, OnlyCoresOfTheAgentAreUsed) {
  build_dgx();
  EXPECT_EQ(cores(places(NumaBinding::node, 8, {}, {0, 1, 8, 9})[5]), "8-9");
  EXPECT_TRUE(places(NumaBinding::automatic, 8, {}, {8, 9})[0].cores.empty()) << "one node is left";
  EXPECT_NE(error_of([&] {
              places(NumaBinding::exclusive, 8, {}, {0, 1, 8, 9});
            }).find("2 physical cores"),
            std::string::npos);
}

TEST_F(Places, NothingIsBoundIfTheNodeIsUnknown) {
  build(1, 4);
  EXPECT_TRUE(places(NumaBinding::none, 2)[0].cores.empty());
  add_gpu("0000:0a:00.0", -1, "GPU-a");
  EXPECT_TRUE(places(NumaBinding::automatic, 1)[0].cores.empty()) << "the kernel does not know the GPU's node";
  EXPECT_NE(error_of([&] { places(NumaBinding::node, 1); }).find("GPU 0 (0000:0a:00.0) is not near"),
            std::string::npos);
  EXPECT_TRUE(describe_bindings(places(NumaBinding::automatic, 1), 0).empty());
}

TEST_F(Places, AMachineWithoutFilesBindsNothing) {
  EXPECT_TRUE(places(NumaBinding::automatic, 2, {}, {0, 1})[0].cores.empty());
  EXPECT_NE(error_of([&] {
              places(NumaBinding::node, 2, {}, {0, 1});
            }).find("/sys/devices/system/cpu"),
            std::string::npos);
}

TEST(NumberLists, AreReadAndWritten) {
  for (const char* text : {"0", "0-3", "0-1,4,6-7", ""}) EXPECT_EQ(format_number_list(*parse_number_list(text)), text);
  for (const char* bad : {"a", "3-1", "-1", "0-", "1,,2", "0-99999999"}) EXPECT_FALSE(parse_number_list(bad)) << bad;
}

TEST(ThisMachine, ShowsTheCoresThatThisProcessMayUse) {
  const Machine machine = read_machine();
  if (machine.cores.empty()) GTEST_SKIP() << "no /sys/devices/system/cpu";
  for (const int core : allowed_cores()) EXPECT_EQ(std::ranges::count(machine.cores, core, &Core::number), 1) << core;
}

}  // namespace
}  // namespace ring
