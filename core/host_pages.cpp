#include "core/host_pages.h"

#include <cstdlib>

#include "core/page_locker.h"

namespace ring {
namespace {

constexpr std::size_t kAtOnce = std::size_t{16} << 20;  // smaller sizes are allocated faster than a thread starts
constexpr std::size_t kSlab = std::size_t{16} << 20;    // small: the kernel blocks other mappings while it touches one

// Returns a PageLocker that touches pages but does not lock them, because copies on a CPU need no locked pages.
PageLocker& pages() {
  static PageLocker all({[](std::byte*, std::size_t) {}, [](std::byte*) {}}, 1, {}, kSlab);
  return all;
}

}  // namespace

std::shared_ptr<void> host_pages(std::size_t bytes) {
  if (bytes >= kAtOnce) return pages().allocate(bytes);
  return {std::calloc(bytes, 1), std::free};  // NOLINT: untyped bytes, which the shared_ptr frees
}

}  // namespace ring
