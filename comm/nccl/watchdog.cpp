#include "comm/nccl/watchdog.h"

#ifdef RING_WITH_NCCL

#include <chrono>
#include <optional>
#include <string>

#include "core/awake_clock.h"
#include "core/signals.h"

namespace ring {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPeriod{50};
// Maximum time to wait for Liveness to name a lost rank, because NCCL does not report which rank was lost.
constexpr milliseconds kPatience{1'500};
// Time in which every rank notices a loss: longer than the period in which Liveness looks for it.
constexpr milliseconds kNoticeTime{600};

}  // namespace

NcclWatchdog::NcclWatchdog(const Device& device, int world)
    : abort_flag_(
          std::static_pointer_cast<std::uint32_t>(Stream::create(device).impl().host_buffer(sizeof(std::uint32_t)))),
      notice_time_(world > 2 ? kNoticeTime : milliseconds{0}) {  // of two ranks, only one survives
  *abort_flag_ = 0;
  nccl::library();  // throws here if NCCL is missing, before ranks meet
  const BlockSignals block;
  thread_ = std::thread([this] { run(); });
}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void NcclWatchdog::watch(const std::shared_ptr<nccl::Channel>& channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(channel);
}

void NcclWatchdog::check() {
  Channels channels;
  {
    const std::lock_guard lock(mutex_);
    channels = live_channels();
  }
  for (const auto& channel : channels) channel->check();
}

NcclWatchdog::Channels NcclWatchdog::live_channels() {
  Channels out;
  std::erase_if(channels_, [&](const auto& weak) {
    auto channel = weak.lock();
    if (channel) out.push_back(std::move(channel));
    return weak.expired();
  });
  return out;
}

void NcclWatchdog::run() {
  std::optional<AwakeClock::time_point> since;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPeriod, [this] { return stop_; })) {
    Channels channels = live_channels();
    lock.unlock();
    std::optional<std::string> problem;
    for (const auto& channel : channels)
      if (!problem) problem = channel->find_problem();
    const auto now = AwakeClock::now();
    if (!problem)
      since.reset();
    else if (!since)
      since = now;
    else if (now - *since > kPatience)
      for (const auto& channel : channels) channel->abort(*problem);
    channels.clear();
    lock.lock();
  }
}

}  // namespace ring

#endif
