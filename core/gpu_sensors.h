#pragma once
// Readings of NVIDIA GPUs from the driver's NVML, which needs no CUDA context. A driver in trouble may not answer: call
// read() on a thread that may wait.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/dtype.h"

namespace ring {

struct GpuReading {
  std::optional<double> celsius, used_bytes, watts;
  std::optional<double> utilization;  // share of the driver's last sampling period in which a kernel ran, 0 to 1
  std::optional<double> sm_mhz;       // clock of the multiprocessors
  std::uint64_t throttle = 0;         // why clocks are lower than they could be: bits of NVML, 0 for no reason
};

class GpuSensors {
 public:
  // Loads the library at the first read(). Without it, or without its driver, readings are empty.
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

inline constexpr std::uint64_t kGpuIdle = 1;  // bit of GpuReading::throttle: no work, which lowers clocks, too

// "heat, the power limit"; empty if there is no reason beside idleness.
std::string throttle_text(std::uint64_t throttle);

// PCI address of a device; empty if it is no GPU or not known.
std::string device_bus(Device);
using DeviceBusTeller = std::string (*)(int device);
bool register_device_bus(Backend, DeviceBusTeller);  // called at load time by core/cuda

}  // namespace ring
