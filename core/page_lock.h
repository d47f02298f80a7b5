#pragma once
// Locks the pages of existing host memory, so that a device can copy to it asynchronously, as to a stream's
// host_buffer().

#include <cstddef>
#include <memory>

#include "core/dtype.h"

namespace ring {

// Returns the same memory, which stays locked until the last copy of the returned pointer is gone. Does nothing for a
// CPU. Throws Error if the device refuses.
std::shared_ptr<void> with_locked_pages(std::shared_ptr<void> memory, std::size_t bytes, Device);

// Registered at load time by core/cuda if it is part of the build.
using PageLock = std::shared_ptr<void> (*)(std::shared_ptr<void> memory, std::size_t bytes);
bool register_page_lock(Backend, PageLock);

}  // namespace ring
