#pragma once
// Total and free memory of a device. For the host, see core/host_memory.h.

#include <cstdint>
#include <optional>

#include "core/dtype.h"

namespace ring {

struct DeviceMemory {
  std::uint64_t total = 0, free = 0;  // bytes
};
// Returns a device's memory, and initializes the device. Returns nullopt if the backend is the CPU, is not in this
// build, or does not report it.
std::optional<DeviceMemory> device_memory(Device);

using DeviceMemoryTeller = std::optional<DeviceMemory> (*)(int device);
// Called at load time by core/cuda if it is part of the build.
bool register_device_memory(Backend, DeviceMemoryTeller);

}  // namespace ring
