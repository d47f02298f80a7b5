#pragma once
// Describes a machine's cores, memory nodes and GPUs, read from /sys and /proc without starting a driver or library.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/number_list.h"
#include "job/environment.h"

namespace ring {

struct Core {  // a logical core, by its kernel number
  int number = 0;
  int node = 0;  // its NUMA node
  int socket = 0;
  int physical = 0;  // lowest core number among the hardware threads of its physical core
  int complex = 0;   // lowest core number among the cores with the same last-level cache
};

struct Gpu {
  std::string bus;   // PCI address, e.g. "0000:3b:00.0"
  std::string uuid;  // e.g. "GPU-4c1..."
  std::string model;
  int node = -1;  // nearest NUMA node; -1 if unknown
};

struct Machine {
  std::vector<Core> cores;     // online cores, sorted
  std::vector<Gpu> gpus;       // GPUs known to the driver, sorted by PCI address
  int num_numa_nodes() const;  // number of NUMA nodes with cores
};

// Reads the description; parts that cannot be read are left empty. root: prefix of /sys and /proc.
Machine read_machine(const std::filesystem::path& root = "/");

// Returns the GPUs that CUDA numbers 0, 1, ... in a process with this environment (CUDA_VISIBLE_DEVICES,
// CUDA_DEVICE_ORDER). Returns nullopt if the numbering is unknown: different GPU models, which CUDA sorts by speed, or
// parts of a GPU (MIG).
std::optional<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>& gpus, const Environment&);

}  // namespace ring
