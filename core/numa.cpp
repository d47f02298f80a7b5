#include "core/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string_view>
#include <vector>

#include "core/number_list.h"

namespace ring {
namespace {

constexpr int kPreferred = 1;  // MPOL_PREFERRED, <linux/mempolicy.h>
constexpr int kBits = 8 * sizeof(unsigned long);

// Returns "0-1" from the line "Mems_allowed_list: 0-1"; nullopt if there is no such line.
std::optional<std::string> allowed_nodes(const std::string& root) {
  constexpr std::string_view kKey = "Mems_allowed_list:";
  std::ifstream status(root + "/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kKey)) return line.substr(std::min(line.size(), line.find_first_of("0123456789")));
  return {};
}

// Returns the nodes with memory that this process may use: cpusets restrict them.
std::vector<int> usable_nodes(const std::string& root) {
  std::string with_memory;
  std::getline(std::ifstream(root + "/sys/devices/system/node/has_memory"), with_memory);
  std::vector<int> nodes = parse_number_list(with_memory).value_or(std::vector<int>{});
  const std::vector<int> mine = parse_number_list(allowed_nodes(root).value_or(with_memory)).value_or(nodes);
  std::erase_if(nodes, [&](int n) { return !std::ranges::binary_search(mine, n); });
  return nodes;
}

}  // namespace

std::optional<int> memory_node_of(std::string bus, const std::string& root) {
  std::ranges::transform(bus, bus.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::vector<int> nodes = usable_nodes(root);
  int node = -1;
  if (nodes.size() < 2 || !(std::ifstream(root + "/sys/bus/pci/devices/" + bus + "/numa_node") >> node)) return {};
  return std::ranges::binary_search(nodes, node) ? std::optional(node) : std::nullopt;
}

bool has_memory_policy() {
  int mode = 0;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode != 0;
}

void prefer_node(void* p, std::size_t bytes, int node) {
  std::vector<unsigned long> mask(static_cast<std::size_t>(node / kBits) + 1);
  mask.back() = 1ul << (node % kBits);
  syscall(SYS_mbind, p, bytes, kPreferred, mask.data(), mask.size() * kBits + 1, 0);
}

}  // namespace ring
