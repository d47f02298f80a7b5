#pragma once
// How much memory a device has and how much of it is free. Of the host, see core/host_memory.h.

#include <cstdint>
#include <optional>

#include "core/dtype.h"

namespace ring {

struct DeviceMemory {
  std::uint64_t total = 0, free = 0;  // bytes
};
// Starts the device. Nothing: the backend is not in this build, is the CPU, or does not tell.
std::optional<DeviceMemory> device_memory(Device);

using DeviceMemoryTeller = std::optional<DeviceMemory> (*)(int device);
bool register_device_memory(Backend, DeviceMemoryTeller);  // at load time, by core/cuda when it is part of the build

}  // namespace ring
