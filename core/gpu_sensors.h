#pragma once
// Readings of NVIDIA GPUs from the driver's NVML, which needs no CUDA context. A faulty driver may never answer: call
// read() on a thread that may block.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/dtype.h"

namespace ring {

struct GpuReading {
  std::optional<double> celsius, used_bytes, watts;
  std::optional<double> utilization;  // share of the driver's last sampling period in which a kernel ran, 0 to 1
  std::optional<double> sm_mhz;       // SM clock
  std::uint64_t throttle = 0;         // why clocks are reduced: bits of nvmlClocksThrottleReason; 0 if not reduced
};

class GpuSensors {
 public:
  // Loads the library at the first read(). Without the library or its driver, readings are empty.
  explicit GpuSensors(std::string library = "libnvidia-ml.so.1");
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  GpuReading read(const std::string& bus);  // PCI address, "0000:3b:00.0"

 private:
  struct Nvml;
  std::string library_;
  std::unique_ptr<Nvml> nvml_;  // null until the first read()
};

// Bit of GpuReading::throttle: the GPU has no work, which also reduces clocks.
inline constexpr std::uint64_t kGpuIdle = 1;

// Returns the reasons as text, e.g. "heat, the power limit"; "" if there is none except idleness.
std::string throttle_text(std::uint64_t throttle);

// Returns the PCI address of a device; "" if it is unknown or the device is not a GPU.
std::string device_bus(Device);
using DeviceBusTeller = std::string (*)(int device);
bool register_device_bus(Backend, DeviceBusTeller);  // called at load time by core/cuda

}  // namespace ring
