#include "comm/nccl/peer_memory_pool.h"

#ifdef RING_WITH_NCCL

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/cuda/check.h"
#include "core/cuda/handles.h"

namespace ring::nccl {
namespace {

constexpr std::size_t kUnit = 512;  // alignment of tensors in bytes
constexpr std::size_t kSmallestSegment = std::size_t{64} << 20;

std::size_t round_up(std::size_t n) { return (n + kUnit - 1) / kUnit * kUnit; }

}  // namespace

PeerMemoryPool::~PeerMemoryPool() {
  for (const Segment& s : segments_)
    if (!abandoned_) cudaFree(s.data);  // the result is ignored: at process exit the device may be gone
}

Tensor PeerMemoryPool::tensor(const Shape& shape, DType dtype, const Stream& stream) {
  const std::size_t used = static_cast<std::size_t>(shape.numel()) * size_of(dtype), bytes = round_up(used);
  if (bytes == 0) return Tensor::empty(shape, dtype, stream);
  std::byte* const at = allocate(bytes, stream);
  const std::shared_ptr<void> owner(
      at, [self = shared_from_this(), bytes](void* p) { self->deallocate(static_cast<std::byte*>(p), bytes); });
  return Tensor::wrap(std::make_shared<Storage>(at, used, device_, owner), shape, dtype);
}

std::byte* PeerMemoryPool::allocate(std::size_t bytes, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto smallest = [&] {
    auto best = free_.end();
    for (auto run = free_.begin(); run != free_.end(); ++run)
      if (run->second >= bytes && (best == free_.end() || run->second < best->second)) best = run;
    return best;
  };
  auto run = smallest();
  if (run == free_.end()) {
    add_segment(bytes, stream);
    run = smallest();
  }
  const auto [at, size] = *run;
  free_.erase(run);
  if (size > bytes) free_[at + bytes] = size - bytes;
  return at;
}

void PeerMemoryPool::deallocate(std::byte* at, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto run = free_.emplace(at, bytes).first;
  const auto starts_segment = [&](const std::byte* p) {
    return std::ranges::any_of(segments_, [&](const Segment& s) { return s.data == p; });
  };
  const auto join_next = [&](auto left) {
    const auto right = std::next(left);
    if (right == free_.end() || left->first + left->second != right->first || starts_segment(right->first)) return;
    left->second += right->second;
    free_.erase(right);
  };
  join_next(run);
  if (run != free_.begin()) join_next(std::prev(run));
}

void PeerMemoryPool::add_segment(std::size_t bytes, const Stream& stream) {
  const cuda::OnDevice on(device_.index);
  const std::size_t size = std::bit_ceil(std::max(bytes, kSmallestSegment));  // rounded up, so that varying sizes fit
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, size);  // no pool, because pool memory has no IPC handle
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    stream.allocator()->trim();
    error = cudaMalloc(&data, size);
  }
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(str("no ", bytes_text(size), " left on ", device_, " for messages from other ranks"));
  }
  RING_CUDA_CHECK(error);
  const Segment segment{static_cast<std::byte*>(data), size};
  try {
    announce_(segment, segments_.size());
  } catch (...) {
    cudaFree(data);
    throw;
  }
  segments_.push_back(segment);
  free_[segment.data] = size;
}

std::optional<RemoteAddress> PeerMemoryPool::find(const std::byte* at) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < segments_.size(); ++i)
    if (at >= segments_[i].data && at < segments_[i].data + segments_[i].bytes)
      return RemoteAddress{static_cast<std::uint32_t>(i), static_cast<std::uint64_t>(at - segments_[i].data)};
  return {};
}

std::size_t PeerMemoryPool::bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const Segment& s : segments_) sum += s.bytes;
  return sum;
}

void PeerMemoryPool::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
}

void PeerMemoryPool::reclaim() {
  const std::lock_guard lock(mutex_);
  abandoned_ = false;
}

}  // namespace ring::nccl

#endif
