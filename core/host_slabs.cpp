#include "core/host_slabs.h"

#include <algorithm>
#include <utility>

#include "core/host_tensor.h"

namespace ring {
namespace {

constexpr std::size_t kPieceAlignment = 256;
// Size of a shared slab in bytes. Pieces of up to a quarter of it share slabs. A larger piece gets a slab of its own
// size, so nothing is wasted.
constexpr std::size_t kSharedSlab = std::size_t{256} << 20;

}  // namespace

std::byte* HostSlabs::Slab::allocate(std::size_t piece) {
  return static_cast<std::byte*>(memory.get()) + std::exchange(used, used + piece);
}

std::byte* HostSlabs::allocate(std::size_t bytes) {
  const std::size_t piece = (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  for (Slab& slab : slabs_)
    if (slab.bytes - slab.used >= piece) return slab.allocate(piece);
  const std::size_t slab = std::min(piece > kSharedSlab / 4 ? piece : kSharedSlab, limit_ - held_);
  if (slab < piece) return nullptr;
  add_slab(slab);
  return slabs_.back().allocate(piece);
}

std::size_t HostSlabs::held_after(std::size_t bytes) const {
  for (const Slab& slab : slabs_) bytes -= std::min(bytes, slab.bytes - slab.used);
  return std::min(limit_, held_ + (bytes + kSharedSlab - 1) / kSharedSlab * kSharedSlab);
}

void HostSlabs::reserve(std::size_t bytes) {
  const std::size_t slab = std::min(bytes, limit_ - held_);
  if (slab > 0) add_slab(slab);
}

void HostSlabs::add_slab(std::size_t bytes) {
  const std::string facts = str(", ", bytes_text(held_), " held of at most ", bytes_text(limit_));
  slabs_.push_back({take_host_memory(bytes, device_, facts), bytes});
  held_ += bytes;
}

void HostSlabs::reset() {
  for (Slab& slab : slabs_) slab.used = 0;
}

}  // namespace ring
