#include "launcher/machine.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/check.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);  // allowed open: system (/sys, /proc)
  return line;
}

std::vector<int> numbers_in(const fs::path& file) {
  return parse_number_list(line_of(file)).value_or(std::vector<int>{});
}

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// Returns the NUMA nodes of all cores that have one.
std::map<int, int> nodes_of_cores(const fs::path& nodes) {
  std::map<int, int> of;
  for (const int node : numbers_in(nodes / "online"))
    for (const int core : numbers_in(nodes / str("node", node) / "cpulist")) of[core] = node;
  return of;
}

// Returns the lowest core that shares the core's last-level cache.
int complex_of(const fs::path& cpu, int core) {
  int level = -1, first = core;
  for (const std::string& name : entries_of(cpu / "cache")) {
    const int here = parse_int(line_of(cpu / "cache" / name / "level")).value_or(-1);
    const std::vector<int> sharing = numbers_in(cpu / "cache" / name / "shared_cpu_list");
    if (here > level && !sharing.empty()) level = here, first = sharing.front();
  }
  return first;
}

std::vector<Core> read_cores(const fs::path& system) {
  const std::map<int, int> nodes = nodes_of_cores(system / "node");
  std::vector<Core> cores;
  for (const int n : numbers_in(system / "cpu/online")) {
    const fs::path cpu = system / "cpu" / str("cpu", n);
    const std::vector<int> siblings = numbers_in(cpu / "topology/thread_siblings_list");
    cores.push_back({.number = n,
                     .node = nodes.contains(n) ? nodes.at(n) : 0,
                     .socket = parse_int(line_of(cpu / "topology/physical_package_id")).value_or(0),
                     .physical = siblings.empty() ? n : siblings.front(),
                     .complex = complex_of(cpu, n)});
  }
  return cores;
}

// Returns the value in a line such as "GPU UUID:   GPU-4c1..." of the driver's file.
std::string value_of(const fs::path& file, const std::string& key) {
  std::ifstream lines(file);  // allowed open: system (/proc)
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key + ":")) continue;
    const std::size_t begin = line.find_first_not_of(" \t", key.size() + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::vector<Gpu> read_gpus(const fs::path& root) {
  std::vector<Gpu> gpus;
  const fs::path driver = root / "proc/driver/nvidia/gpus";
  for (std::string bus : entries_of(driver)) {
    const fs::path facts = driver / bus / "information";
    std::ranges::transform(bus, bus.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string node = line_of(root / "sys/bus/pci/devices" / bus / "numa_node");
    gpus.push_back({bus, value_of(facts, "GPU UUID"), value_of(facts, "Model"), parse_int(node).value_or(-1)});
  }
  return gpus;
}

// Finds a GPU by its number or by the beginning of its UUID.
const Gpu* named(const std::string& word, const std::vector<Gpu>& gpus) {
  if (const auto n = parse_int(word))
    return *n >= 0 && *n < static_cast<int>(gpus.size()) ? &gpus[static_cast<std::size_t>(*n)] : nullptr;
  const auto at = std::ranges::find_if(gpus, [&](const Gpu& g) { return !word.empty() && g.uuid.starts_with(word); });
  return at == gpus.end() ? nullptr : &*at;
}

}  // namespace

int Machine::num_numa_nodes() const {
  std::set<int> nodes;
  for (const Core& c : cores) nodes.insert(c.node);
  return static_cast<int>(nodes.size());
}

Machine read_machine(const fs::path& root) { return {read_cores(root / "sys/devices/system"), read_gpus(root)}; }

std::optional<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>& all, const Environment& env) {
  const auto order = env.find("CUDA_DEVICE_ORDER");
  const bool by_bus = order != env.end() && order->second == "PCI_BUS_ID";
  const bool alike = std::ranges::all_of(all, [&](const Gpu& g) { return g.model == all.front().model; });
  if (!alike && !by_bus) return {};
  const auto given = env.find("CUDA_VISIBLE_DEVICES");
  if (given == env.end()) return all;
  if (given->second.find("MIG") != std::string::npos) return {};
  std::vector<Gpu> visible;
  std::istringstream words(given->second);
  for (std::string word; std::getline(words, word, ',');) {
    std::erase(word, ' ');
    const Gpu* gpu = named(word, all);
    if (!gpu) break;  // CUDA ignores everything after the first unknown GPU
    visible.push_back(*gpu);
  }
  return visible;
}

}  // namespace ring
