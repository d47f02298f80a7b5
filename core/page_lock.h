#pragma once
// Locks the pages of host memory that exists already, so that a device can copy to it while the host goes on, as it can
// to a stream's host_buffer().

#include <cstddef>
#include <memory>

#include "core/dtype.h"

namespace ring {

// The same memory, locked until the last copy of what is returned is gone. A CPU needs no lock. Error: the device
// refuses.
std::shared_ptr<void> with_locked_pages(std::shared_ptr<void> memory, std::size_t bytes, Device);

// Filled at load time by core/cuda when it is part of the build.
using PageLock = std::shared_ptr<void> (*)(std::shared_ptr<void> memory, std::size_t bytes);
bool register_page_lock(Backend, PageLock);

}  // namespace ring
