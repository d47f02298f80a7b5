#include "core/devices.h"

#include <array>
#include <cctype>
#include <cstdlib>

namespace ring {
namespace {

std::array<BackendInspector, kBackends>& inspectors() {
  static std::array<BackendInspector, kBackends> table{};
  return table;
}

std::array<DeviceModelTeller, kBackends>& model_tellers() {
  static std::array<DeviceModelTeller, kBackends> table{};
  return table;
}

}  // namespace

bool register_device_model(Backend backend, DeviceModelTeller teller) {
  model_tellers()[static_cast<std::size_t>(backend)] = teller;
  return true;
}

std::string device_model(Device device) {
  const DeviceModelTeller teller = model_tellers()[static_cast<std::size_t>(device.backend)];
  return teller ? teller(device.index) : "";
}

bool register_backend_inspector(Backend backend, BackendInspector inspector) {
  inspectors()[static_cast<std::size_t>(backend)] = inspector;
  return true;
}

BackendFacts inspect_backend(Backend backend) {
  const BackendInspector inspector = inspectors()[static_cast<std::size_t>(backend)];
  return inspector ? inspector() : BackendFacts{};
}

bool arch_runs_on(std::string_view arch, int capability) {
  const int built = std::atoi(std::string(arch).c_str());
  if (built == 0) return false;
  if (std::isalpha(static_cast<unsigned char>(arch.back()))) return built == capability;
  return built / 10 == capability / 10 && built <= capability;
}

}  // namespace ring
