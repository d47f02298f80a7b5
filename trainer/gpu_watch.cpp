#include "trainer/gpu_watch.h"

#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

namespace ring {
namespace {

constexpr std::chrono::seconds kPatience(2);  // maximum wait of ~GpuWatch() for a reading in progress

}  // namespace

std::shared_ptr<const GpuSource> find_gpu_sensors(Device device) {
  const std::string bus = device_bus(device);
  if (bus.empty()) return nullptr;
  const auto sensors = std::make_shared<GpuSensors>();
  return std::make_shared<const GpuSource>(GpuSource{bus, [sensors, bus] { return sensors->read(bus); }});
}

void GpuSamples::Sums::add(const GpuReading& r) {
  celsius.add(r.celsius);
  used_bytes.add(r.used_bytes);
  watts.add(r.watts);
  utilization.add(r.utilization);
  sm_mhz.add(r.sm_mhz);
  if (!(r.throttle & kGpuIdle)) busy_mhz.add(r.sm_mhz);
  throttle |= r.throttle & ~kGpuIdle;
  ++readings;
}

GpuSamples::Means GpuSamples::Sums::means() const {
  return {{celsius.mean(), used_bytes.mean(), watts.mean(), utilization.mean(), sm_mhz.mean(), throttle},
          busy_mhz.mean()};
}

void GpuSamples::add(const GpuReading& r) {
  const std::lock_guard lock(mutex_);
  for (Sums& sums : since_) sums.add(r);
  newest_ = {};
  newest_.add(r);
}

GpuSamples::Means GpuSamples::take(Reader reader) {
  const std::lock_guard lock(mutex_);
  const Sums sums = std::exchange(since_[static_cast<std::size_t>(reader)], Sums{});
  return (sums.readings ? sums : newest_).means();
}

struct GpuWatch::State {
  std::shared_ptr<const GpuSource> source;
  std::chrono::duration<double> between;
  GpuSamples samples;
  std::mutex mutex;  // guards all members below
  std::condition_variable changed;
  bool stop = false, ended = false;

  void run() {
    std::unique_lock lock(mutex);
    while (!stop) {
      lock.unlock();
      samples.add(source->read());
      lock.lock();
      changed.wait_for(lock, between, [&] { return stop; });
    }
    ended = true;
    changed.notify_all();
  }
};

GpuWatch::GpuWatch(std::shared_ptr<const GpuSource> source, double seconds) : state_(std::make_shared<State>()) {
  state_->source = std::move(source);
  state_->between = std::chrono::duration<double>(seconds);
  // Detached: if a call into the driver hangs, it must not keep the process from ending.
  std::thread([state = state_] { state->run(); }).detach();
}

GpuWatch::~GpuWatch() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [&] { return state_->ended; });
}

const std::string& GpuWatch::bus() const { return state_->source->bus; }

GpuSamples::Means GpuWatch::take(GpuSamples::Reader reader) { return state_->samples.take(reader); }

}  // namespace ring
