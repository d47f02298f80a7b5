#pragma once
// What a machine's kernel says of its cores, memory and GPUs, read from /sys and /proc: no driver or library is
// started.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/number_list.h"
#include "job/environment.h"

namespace ring {

struct Core {  // a logical one, as the kernel numbers them
  int number = 0;
  int node = 0;  // of memory (NUMA)
  int socket = 0;
  int physical = 0;  // the lowest number among those that share its execution units
  int complex = 0;   // the lowest number among those that share its last cache
};

struct Gpu {
  std::string bus;   // PCI address, "0000:3b:00.0"
  std::string uuid;  // "GPU-4c1..."
  std::string model;
  int node = -1;  // of memory that it is near to; -1: the kernel does not say
};

struct Machine {
  std::vector<Core> cores;  // that are online, ascending
  std::vector<Gpu> gpus;    // that the driver shows, by PCI address
  int nodes() const;        // that have cores
};

// root: in front of /sys and /proc. What cannot be read is not there.
Machine read_machine(const std::filesystem::path& root = "/");

// The GPUs that a process with this environment numbers 0, 1, ..: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER count.
// Nothing: the numbers are not known, as with different models, which CUDA sorts by speed, or parts of a GPU (MIG).
std::optional<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>&, const Environment&);

}  // namespace ring
