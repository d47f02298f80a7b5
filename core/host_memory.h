#pragma once
// How much memory this process may still take from its host, and who says so: the machine, the control groups around
// the process (v1 and v2; containers, SLURM and systemd limit by them), or the process's own resource limits.

#include <cstdint>
#include <string>
#include <vector>

namespace ring {

struct MemoryBound {
  std::string source;           // "MemAvailable in /proc/meminfo", "/sys/fs/cgroup/job_7/memory.max"
  std::uint64_t total = 0;      // bytes
  std::uint64_t available = 0;  // of these, what nobody uses, or only caches that give way
  std::uint64_t swap = 0;       // free beside it
  bool of_process = false;      // each process has its own; otherwise all of them here share it
  std::uint64_t most() const { return available + swap; }
};

// All that hold here, the machine's own first. `root` is put before the paths of files, whose names `source` gives
// without it. What cannot be read bounds nothing.
std::vector<MemoryBound> memory_bounds(const std::string& root = "");

// The one that leaves least; the machine's where several leave the same. Needs at least one.
const MemoryBound& tightest(const std::vector<MemoryBound>&);

}  // namespace ring
