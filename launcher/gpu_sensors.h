#pragma once
// Temperature and memory of NVIDIA's GPUs, by the driver's NVML, which needs no context of CUDA. A driver in trouble
// may not answer: ask on a thread that may wait.

#include <memory>
#include <optional>
#include <string>

namespace ring {

struct GpuReading {
  std::optional<double> celsius, used_bytes;
};

class GpuSensors {
 public:
  // The library is loaded at the first question. Without it, or without its driver, nothing is known.
  explicit GpuSensors(std::string library = "libnvidia-ml.so.1");
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  GpuReading read(const std::string& bus);  // PCI address, "0000:3b:00.0"

 private:
  struct Nvml;
  std::string library_;
  std::unique_ptr<Nvml> nvml_;  // null: not asked yet
};

}  // namespace ring
