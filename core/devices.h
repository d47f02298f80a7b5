#pragma once
// The devices of each backend on this machine, and the facts that `ringmaster doctor` reports about them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/known_defects.h"

namespace ring {

// Returns 1 for the CPU. Returns 0 for another backend if it is not in this build, or if this machine lacks its driver
// or devices.
int device_count(Backend);

// Called at load time by core/cuda if it is part of the build.
using DeviceCounter = int (*)();
bool register_device_counter(Backend, DeviceCounter);

// A library or driver that a backend loads at run time.
struct LibraryFacts {
  std::string name, use;  // such as "cuDNN", which is used for "attention"
  bool found = false;
  bool needed = false;  // true if the backend cannot run without it
  Version version{};
  std::string detail;  // such as the library's path, or how to install it
};

// Returns the model, such as "NVIDIA H200", without initializing the device; "" for the CPU and for devices that are
// not on this machine.
std::string device_model(Device);
using DeviceModelTeller = std::string (*)(int device);
bool register_device_model(Backend, DeviceModelTeller);  // called at load time, like register_device_counter()

struct DeviceFacts {
  Device device;
  std::string name;
  std::uint64_t memory_total = 0, memory_free = 0;  // bytes
  int capability = 0;                               // CUDA compute capability: 10 * major + minor
  std::optional<int> memory_node{};                 // the NUMA node closest to the device, if there are several
  std::string problem;                              // why the device cannot be used; "" if it can
};

// How one device reaches the memory of another.
enum class Link : std::uint8_t { self, fast, bus, none };  // fast: NVLink; bus: PCIe; none: through the host

struct BackendFacts {
  std::string problem;  // why no device can be used, if devices may be present; "" otherwise
  std::vector<LibraryFacts> libraries;
  std::vector<DeviceFacts> devices;
  std::vector<std::vector<Link>> links;  // links[from][to]
};
// Returns all facts about a backend; empty ones if the backend is not in this build. Initializes its devices, which
// takes a moment. Never throws.
BackendFacts inspect_backend(Backend);
using BackendInspector = BackendFacts (*)();
bool register_backend_inspector(Backend, BackendInspector);  // called at load time, like register_device_counter()

// Returns true if machine code for `arch` runs on a device of this capability. An arch with a letter ("90a") needs
// exactly that capability. Others ("80") run on every device of the same major version that is not older.
bool arch_runs_on(std::string_view arch, int capability);

}  // namespace ring
