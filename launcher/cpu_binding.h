#pragma once
// Binds a process to cores, and its memory to NUMA nodes.

#include <vector>

namespace ring {

class CpuBinding {
 public:
  // Core numbers must be sorted; an empty list means no restriction.
  CpuBinding(const std::vector<int>& cores, const std::vector<int>& memory_nodes);
  // Binds this process and its future children. Async-signal-safe. Returns false if the kernel did not bind the process
  // to the cores. The memory nodes are only preferred: other nodes are used when these are full; before Linux 5.15 only
  // one node can be preferred.
  bool apply() const;

 private:
  using Mask = std::vector<unsigned long>;
  static Mask mask_of(const std::vector<int>& numbers);
  Mask cores_, nodes_;
};

std::vector<int> allowed_cores();  // cores that this process may use, sorted
bool memory_can_be_bound();        // true if the kernel allows this process to set a memory policy

}  // namespace ring
