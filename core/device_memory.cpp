#include "core/device_memory.h"

#include <array>

namespace ring {
namespace {

std::array<DeviceMemoryTeller, kBackends>& tellers() {
  static std::array<DeviceMemoryTeller, kBackends> table{};
  return table;
}

}  // namespace

bool register_device_memory(Backend backend, DeviceMemoryTeller teller) {
  tellers()[static_cast<std::size_t>(backend)] = teller;
  return true;
}

std::optional<DeviceMemory> device_memory(Device device) {
  const DeviceMemoryTeller teller = tellers()[static_cast<std::size_t>(device.backend)];
  return teller ? teller(device.index) : std::nullopt;
}

}  // namespace ring
