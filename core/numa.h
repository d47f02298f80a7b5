#pragma once
// Machines with several memories (NUMA nodes): which of them is near to a device. Copies to and from another one cross
// the link between processors.

#include <cstddef>
#include <optional>
#include <string>

namespace ring {

// The node that a PCI device ("0000:3B:00.0") is near to. Nothing: this process may use one node only, or the kernel
// does not say, or says one that this process may not use. root: in front of /sys and /proc.
std::optional<int> memory_node_of(std::string bus, const std::string& root = "");

// Whether somebody has said already which memory this process prefers: the launcher, or numactl.
bool prefers_memory();

// Pages that are touched from now on come from this node as long as it has some. p: at the start of a page. A wish: a
// kernel that refuses it places them as it does otherwise.
void prefer_node(void* p, std::size_t bytes, int node);

}  // namespace ring
