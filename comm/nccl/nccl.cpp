#include "comm/nccl/nccl.h"

#ifndef RING_WITH_NCCL

namespace ring {

bool nccl_available() { return false; }

std::shared_ptr<NcclWatchdog> make_nccl_watchdog() {
  fail(
      "several processes with GPUs need NCCL, which this build lacks: install libnccl-dev (it needs CUDA too), then "
      "configure and build again, or set run.device: cpu");
}

std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup&, std::shared_ptr<Store>,
                                                     std::shared_ptr<NcclWatchdog>, const CommOptions&) {
  make_nccl_watchdog();
  return nullptr;
}

}  // namespace ring

#endif
