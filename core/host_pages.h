#pragma once
// Memory beside a CPU's tensors: copies for checkpoints, states that travel.

#include <cstddef>
#include <memory>

namespace ring {

// Zeros. What is large is touched ahead by a thread, so that whoever writes there first does not wait for pages. Error:
// no address space; null: no memory.
std::shared_ptr<void> host_pages(std::size_t bytes);

}  // namespace ring
