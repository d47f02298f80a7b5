#pragma once
// Implements NcclWatchdog (comm/nccl/nccl.h).

#ifdef RING_WITH_NCCL

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/nccl/channel.h"

namespace ring {

class NcclWatchdog {
 public:
  NcclWatchdog(const Device&, int world);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  void watch(const std::shared_ptr<nccl::Channel>&);
  void check();  // throws PeerLost if one of the channels was aborted
  const std::shared_ptr<std::uint32_t>& abort_flag() const { return abort_flag_; }  // see nccl_abort_flag()
  // Returns the time between the abort flag and the abort, in which the other ranks notice the loss and set their
  // flags. An aborted operation also ends on ranks that did not abort it, and their outputs are undefined.
  std::chrono::milliseconds notice_time() const { return notice_time_; }

 private:
  using Channels = std::vector<std::shared_ptr<nccl::Channel>>;
  void run();
  Channels live_channels();  // drops destroyed channels

  const std::shared_ptr<std::uint32_t> abort_flag_;
  const std::chrono::milliseconds notice_time_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<nccl::Channel>> channels_;
  bool stop_ = false;
  std::thread thread_;  // last member: started after all others exist
};

}  // namespace ring

#endif
