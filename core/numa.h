#pragma once
// NUMA: finds the node closest to a device. Copies to and from other nodes cross the link between processors.

#include <cstddef>
#include <optional>
#include <string>

namespace ring {

// Returns the node closest to a PCI device ("0000:3B:00.0"). Returns nullopt if this process may use only one node, if
// the kernel does not report the device's node, or if this process may not use that node. `root` is put in front of
// /sys and /proc.
std::optional<int> memory_node_of(std::string bus, const std::string& root = "");

// Returns true if the memory policy of this process is already set, by the launcher or by numactl.
bool has_memory_policy();

// Prefers `node` for pages that are touched from now on, as long as the node has free memory. Requires p at the start
// of a page. Best effort: if the kernel refuses, pages are placed as usual.
void prefer_node(void* p, std::size_t bytes, int node);

}  // namespace ring
