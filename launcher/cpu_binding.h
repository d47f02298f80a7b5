#pragma once
// Where the kernel may run a process, and whose memory it prefers.

#include <vector>

namespace ring {

class CpuBinding {
 public:
  // Ascending numbers as the kernel counts; empty: any.
  CpuBinding(const std::vector<int>& cores, const std::vector<int>& memory_nodes);
  // For this process and what it starts. Async-signal-safe. False: the kernel did not bind it to the cores. Memory
  // comes from elsewhere where these nodes have none left; a kernel before 5.15 prefers one node at most.
  bool apply() const;

 private:
  using Mask = std::vector<unsigned long>;
  static Mask mask_of(const std::vector<int>& numbers);
  Mask cores_, nodes_;
};

std::vector<int> allowed_cores();  // of this process
bool memory_can_be_bound();        // whether the kernel lets this process say which memory it prefers

}  // namespace ring
