#pragma once
// Bounds on the host memory that this process may still allocate, and their sources: the machine, the control groups
// around the process (v1 and v2, used by containers, SLURM and systemd), and its own resource limits.

#include <cstdint>
#include <string>
#include <vector>

namespace ring {

struct MemoryBound {
  std::string source;           // e.g. "MemAvailable in /proc/meminfo", "/sys/fs/cgroup/job_7/memory.max"
  std::uint64_t total = 0;      // bytes
  std::uint64_t available = 0;  // bytes that are unused or hold reclaimable caches
  std::uint64_t swap = 0;       // additional bytes of free swap
  bool of_process = false;      // true if the bound is for this process alone; false if all processes here share it
  std::uint64_t limit() const { return available + swap; }
};

// Returns all bounds, the machine's own first. `root` is put in front of all paths that are read; `source` names them
// without it. A file that cannot be read gives no bound.
std::vector<MemoryBound> memory_bounds(const std::string& root = "");

// Returns the bound with the smallest limit(), or the first of several equal ones. Requires at least one bound.
const MemoryBound& tightest_bound(const std::vector<MemoryBound>&);

}  // namespace ring
