#pragma once
// Large page-locked host memory for GPUs, which is locked in the background.

#include <cstddef>
#include <memory>

#include "core/page_locker.h"

namespace ring::cuda {

// Returns this process's PageLocker for one of its GPUs.
PageLocker& page_locker(int device);

// Splits a copy of `bytes` where a slab (unit of page locking) of dst or src ends. Calls copy(offset, bytes) for each
// part as soon as its slabs are locked. dst and src are in host or device memory. Throws OutOfHostMemory.
template <class Copy>
void for_locked_parts(int device, const void* dst, const void* src, std::size_t bytes, const Copy& copy) {
  PageLocker& pages = page_locker(device);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part = pages.wait_until_locked(static_cast<const std::byte*>(dst) + done, bytes - done);
    const std::size_t both = pages.wait_until_locked(static_cast<const std::byte*>(src) + done, part);
    copy(done, both);
    done += both;
  }
}

}  // namespace ring::cuda
