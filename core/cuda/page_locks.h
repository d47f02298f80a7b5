#pragma once
// The page-locked host memory of a GPU that is large, and is locked in the background.

#include <cstddef>
#include <memory>

#include "core/page_locker.h"

namespace ring::cuda {

// This process's, for one of its GPUs.
PageLocker& page_locker(int device);

// Calls copy(offset, bytes) for the parts of a copy of `bytes` that lie in one slab each, as soon as these are locked.
// dst, src: host or device. Error: OutOfHostMemory.
template <class Copy>
void for_locked_parts(int device, const void* dst, const void* src, std::size_t bytes, const Copy& copy) {
  PageLocker& pages = page_locker(device);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part = pages.wait(static_cast<const std::byte*>(dst) + done, bytes - done);
    const std::size_t both = pages.wait(static_cast<const std::byte*>(src) + done, part);
    copy(done, both);
    done += both;
  }
}

}  // namespace ring::cuda
