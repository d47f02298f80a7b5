#pragma once
// Host memory of a CPU run other than its tensors: copies for checkpoints, states that are swapped out.

#include <cstddef>
#include <memory>

namespace ring {

// Returns zeroed memory; null if there is no memory. For large sizes, a background thread touches the pages ahead of
// use, so that the first writer does not wait for page faults. Throws Error if there is no address space.
std::shared_ptr<void> host_pages(std::size_t bytes);

}  // namespace ring
