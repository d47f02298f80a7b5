#pragma once
// What devices of a backend this machine has, and what `ringmaster doctor` can learn about them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/known_defects.h"

namespace ring {

int device_count(Backend);  // cpu: 1. Others: 0 when the backend is not in this build or has no driver or device here

// Filled at load time by core/cuda when it is part of the build.
using DeviceCounter = int (*)();
bool register_device_counter(Backend, DeviceCounter);

// A library or driver that a backend looks for at run time.
struct LibraryFacts {
  std::string name, use;  // "cuDNN", "attention"
  bool found = false;
  bool needed = false;  // without it the backend does nothing
  Version version{};
  std::string detail;  // more about what was found, or how to get it
};

std::string device_model(Device);  // "NVIDIA H200"; starts nothing. Empty: it is the CPU, or not here
using DeviceModelTeller = std::string (*)(int device);
bool register_device_model(Backend, DeviceModelTeller);  // at load time, like the counter

struct DeviceFacts {
  Device device;
  std::string name;
  std::uint64_t memory_total = 0, memory_free = 0;  // bytes
  int capability = 0;                               // CUDA: 10 major + minor
  std::optional<int> memory_node{};                 // of several (NUMA), the one that it is near to
  std::string problem;                              // why it cannot be used; empty: it can
};

// How the first device reaches the memory of the second.
enum class Link : std::uint8_t { self, fast, bus, none };  // fast: NVLink; bus: PCIe; none: through the host

struct BackendFacts {
  std::string problem;  // why no device can be used although there may be some; empty: they can, or there is none
  std::vector<LibraryFacts> libraries;
  std::vector<DeviceFacts> devices;
  std::vector<std::vector<Link>> links;  // [from][to]
};
// Starts the devices, which takes a moment. Never throws. Nothing in it: the backend is not in this build.
BackendFacts inspect_backend(Backend);
using BackendInspector = BackendFacts (*)();
bool register_backend_inspector(Backend, BackendInspector);  // at load time, like the counter

// Whether machine code for `arch` ("90a", "80") runs on a device: a letter ties it to that capability, otherwise any of
// the same generation that is not older will do.
bool runs_on(std::string_view arch, int capability);

}  // namespace ring
