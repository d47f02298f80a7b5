#include "core/gpu_sensors.h"

#include <dlfcn.h>

#include <array>

namespace ring {
namespace {

// Declarations from nvml.h (NVML API Reference Guide). Functions return 0 on success, and device handles are pointers.
using Handle = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;  // percent
};
constexpr int kSuccess = 0, kTemperatureOfGpu = 0, kClockOfSm = 1;

// A bit of nvmlClocksThrottleReason* and its text for messages. Reasons that a user requested are left out.
struct Reason {
  std::uint64_t bit;
  const char* text;
};
constexpr Reason kReasons[] = {{0x04, "the power limit"},
                               {0x08, "a hardware slowdown"},
                               {0x20, "heat"},
                               {0x40, "heat (hardware slowdown)"},
                               {0x80, "the power supply"},
                               {0x02, "application clocks set by an administrator"},
                               {0x10, "its sync boost group"}};

std::array<DeviceBusTeller, kBackends>& bus_tellers() {
  static std::array<DeviceBusTeller, kBackends> table{};
  return table;
}

}  // namespace

struct GpuSensors::Nvml {
  explicit Nvml(const std::string& library) : handle(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle) return;
    int (*init)() = nullptr;
    const bool needed =
        find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") && find(by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
    find(temperature, "nvmlDeviceGetTemperature");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(clock, "nvmlDeviceGetClockInfo");
    find(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons");
    ready = needed && init() == kSuccess;
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
  int (*by_bus)(const char*, Handle*) = nullptr;
  // Null if this NVML lacks the function.
  int (*temperature)(Handle, int, unsigned*) = nullptr;
  int (*memory)(Handle, Memory*) = nullptr;
  int (*power)(Handle, unsigned* milliwatts) = nullptr;
  int (*utilization)(Handle, Utilization*) = nullptr;
  int (*clock)(Handle, int, unsigned* mhz) = nullptr;
  int (*throttle)(Handle, unsigned long long*) = nullptr;
  bool ready = false;
};

GpuSensors::GpuSensors(std::string library) : library_(std::move(library)) {}
GpuSensors::~GpuSensors() = default;

GpuReading GpuSensors::read(const std::string& bus) {
  if (!nvml_) nvml_ = std::make_unique<Nvml>(library_);
  const Nvml& nvml = *nvml_;
  GpuReading r;
  Handle device = nullptr;
  if (!nvml.ready || nvml.by_bus(bus.c_str(), &device) != kSuccess) return r;
  unsigned celsius = 0, milliwatts = 0, mhz = 0;
  Memory memory{};
  Utilization utilization{};
  unsigned long long throttle = 0;
  const auto answers = [&](auto* function, auto... arguments) {
    return function && function(device, arguments...) == kSuccess;
  };
  if (answers(nvml.temperature, kTemperatureOfGpu, &celsius)) r.celsius = celsius;
  if (answers(nvml.memory, &memory)) r.used_bytes = static_cast<double>(memory.used);
  if (answers(nvml.power, &milliwatts)) r.watts = 1e-3 * milliwatts;
  if (answers(nvml.utilization, &utilization)) r.utilization = 1e-2 * utilization.gpu;
  if (answers(nvml.clock, kClockOfSm, &mhz)) r.sm_mhz = mhz;
  if (answers(nvml.throttle, &throttle)) r.throttle = throttle;
  return r;
}

std::string throttle_text(std::uint64_t throttle) {
  std::string text;
  for (const Reason& r : kReasons)
    if (throttle & r.bit) text += (text.empty() ? "" : ", ") + std::string(r.text);
  return text;
}

bool register_device_bus(Backend backend, DeviceBusTeller teller) {
  bus_tellers()[static_cast<std::size_t>(backend)] = teller;
  return true;
}

std::string device_bus(Device device) {
  const DeviceBusTeller teller = bus_tellers()[static_cast<std::size_t>(device.backend)];
  return teller ? teller(device.index) : "";
}

}  // namespace ring
