#pragma once
// Binds a process to cores, and its memory to NUMA nodes.

#include <vector>

namespace ring {

class CpuBinding {
 public:
  // Requires ascending kernel numbers; an empty list means no restriction.
  CpuBinding(const std::vector<int>& cores, const std::vector<int>& memory_nodes);
  // Applies to this process and its future children. Async-signal-safe. Returns false if the kernel did not bind it to
  // the cores. The memory nodes are only preferred: other nodes are used when they are full; before Linux 5.15 only one
  // node can be preferred.
  bool apply() const;

 private:
  using Mask = std::vector<unsigned long>;
  static Mask mask_of(const std::vector<int>& numbers);
  Mask cores_, nodes_;
};

std::vector<int> allowed_cores();  // cores that this process may use, ascending
bool memory_can_be_bound();        // true if the kernel lets this process set a memory policy

}  // namespace ring
