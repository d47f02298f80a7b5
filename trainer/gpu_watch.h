#pragma once
// Reads the sensors of a run's GPU once a second on a separate thread, and averages them.

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/gpu_sensors.h"

namespace ring {

// A GPU and the function that reads its sensors.
struct GpuSource {
  std::string bus;                   // PCI address, for messages
  std::function<GpuReading()> read;  // called by one thread
};

// Returns the sensors of a device; null if it is not a GPU or its PCI address is unknown.
std::shared_ptr<const GpuSource> find_gpu_sensors(Device);

// Means of readings, for two readers that ask at different times. Thread-safe.
class GpuSamples {
 public:
  enum class Reader { metrics, pace };
  struct Means {
    GpuReading mean;             // mean.throttle: union of all reasons seen
    std::optional<double> busy;  // mean clock, in MHz, over readings during which the GPU was busy
  };

  void add(const GpuReading&);
  // Returns the means since this reader's previous call, or the newest reading if there was none since then.
  Means take(Reader);

 private:
  struct Sum {
    double total = 0;
    int count = 0;
    void add(std::optional<double> v) {
      if (v) total += *v, ++count;
    }
    std::optional<double> mean() const { return count ? std::optional(total / count) : std::nullopt; }
  };
  struct Sums {
    Sum celsius, used_bytes, watts, utilization, sm_mhz, busy_mhz;
    std::uint64_t throttle = 0;
    int readings = 0;
    void add(const GpuReading&);
    Means means() const;
  };

  std::mutex mutex_;
  std::array<Sums, 2> since_;  // by reader
  Sums newest_;
};

class GpuWatch {
 public:
  explicit GpuWatch(std::shared_ptr<const GpuSource>, double seconds = 1);  // seconds: time between two readings
  // Waits briefly for a reading in progress. If the driver blocks the thread for longer, the thread is detached.
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  const std::string& bus() const;
  GpuSamples::Means take(GpuSamples::Reader);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace ring
