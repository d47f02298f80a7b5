#include "launcher/gpu_sensors.h"

#include <dlfcn.h>

namespace ring {
namespace {

// As nvml.h declares them (NVML API Reference Guide): 0 is success, device handles are pointers.
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0, kTemperatureOfGpu = 0;

}  // namespace

struct GpuSensors::Nvml {
  explicit Nvml(const std::string& library) : handle(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle) return;
    int (*init)() = nullptr;
    const bool all = find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
                     find(by_bus, "nvmlDeviceGetHandleByPciBusId_v2") &&
                     find(temperature, "nvmlDeviceGetTemperature") && find(memory, "nvmlDeviceGetMemoryInfo");
    ready = all && init() == kSuccess;
  }
  ~Nvml() {
    if (ready) shutdown();
    if (handle) dlclose(handle);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  template <class F>
  bool find(F*& function, const char* name) const {
    return (function = reinterpret_cast<F*>(dlsym(handle, name))) != nullptr;
  }

  void* handle;
  int (*shutdown)() = nullptr;
  int (*by_bus)(const char*, Device*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  bool ready = false;
};

GpuSensors::GpuSensors(std::string library) : library_(std::move(library)) {}
GpuSensors::~GpuSensors() = default;

GpuReading GpuSensors::read(const std::string& bus) {
  if (!nvml_) nvml_ = std::make_unique<Nvml>(library_);
  GpuReading r;
  Device device = nullptr;
  if (!nvml_->ready || nvml_->by_bus(bus.c_str(), &device) != kSuccess) return r;
  unsigned celsius = 0;
  Memory memory{};
  if (nvml_->temperature(device, kTemperatureOfGpu, &celsius) == kSuccess) r.celsius = celsius;
  if (nvml_->memory(device, &memory) == kSuccess) r.used_bytes = static_cast<double>(memory.used);
  return r;
}

}  // namespace ring
