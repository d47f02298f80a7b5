#pragma once
// Memory for tests: every allocation is full of NaN (and of -1 as an integer), and bytes before and after it are
// guarded, so that reading what was never written and writing out of bounds both show.

#include "kernels/kernel.h"

namespace ring::test {

class PoisonAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override;
  void free(void* p, std::size_t bytes) override;  // a touched guard fails the running test
  MemoryStats stats() const override { return stats_; }
  void reset_peak() override { stats_.peak = stats_.in_use; }

 private:
  MemoryStats stats_;
};

// A CPU context whose tensors come from a PoisonAllocator.
ExecContext poisoned_context(int threads);

// The same on another device: memory of its own allocator, filled and checked by copies on the stream.
ExecContext poisoned_device_context(Device);

}  // namespace ring::test
