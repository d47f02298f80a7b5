#pragma once
// Memory for tests: every allocation is full of NaN (-1 as an integer), with guard bytes before and after it, so that
// tests detect reads of uninitialized memory and writes out of bounds.

#include "kernels/kernel.h"

namespace ring::test {

class PoisonAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override;
  void free(void* p, std::size_t bytes) override;  // the running test fails if a guard was overwritten
  MemoryStats stats() const override { return stats_; }
  void reset_peak() override { stats_.peak = stats_.in_use; }

 private:
  MemoryStats stats_;
};

// Returns a CPU context whose tensors come from a PoisonAllocator.
ExecContext poisoned_context(int threads);

// Returns such a context for another device: memory of the device's allocator, filled and checked by copies on the
// stream.
ExecContext poisoned_device_context(Device);

}  // namespace ring::test
