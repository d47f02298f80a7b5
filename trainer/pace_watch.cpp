#include "trainer/pace_watch.h"

#include <algorithm>

namespace ring {
namespace {

GpuWindow window_of(GpuWatch& gpu) {
  const GpuSamples::Means means = gpu.take(GpuSamples::Reader::pace);
  GpuWindow window{.sm_mhz = means.busy.value_or(0), .throttle = means.mean.throttle};
  gpu.bus().copy(window.bus.data(), window.bus.size() - 1);
  return window;
}

}  // namespace

PaceWatch::PaceWatch(Communicator& host, GpuWatch* gpu)
    : pace_(host, gpu ? Pace::GpuReader([gpu] { return window_of(*gpu); }) : nullptr) {}

void PaceWatch::on_step(double data_seconds, RunLog* log) {
  const std::vector<SlowRank> ranks = pace_.on_step(data_seconds);
  if (!log) return;
  for (const SlowRank& rank : ranks) log->log_slow_rank(rank);
  for (const SlowGpu& gpu : pace_.slow_gpus()) log->log_slow_gpu(gpu);
}

}  // namespace ring
