#include <cstdint>

#include "core/cuda/check.h"
#include "core/cuda/small_copy.h"

namespace ring::cuda {
namespace {

constexpr unsigned kThreads = 256;

template <class Word>
__global__ void copy_words(Word* dst, const Word* src, std::size_t words) {
  const std::size_t i = blockIdx.x * std::size_t{kThreads} + threadIdx.x;
  if (i < words) dst[i] = src[i];
}

template <class Word>
bool fits(std::uintptr_t dst, std::uintptr_t src, std::size_t bytes) {
  return (dst | src | bytes) % sizeof(Word) == 0;
}

template <class Word>
void launch(void* dst, const void* src, std::size_t bytes, cudaStream_t stream) {
  const std::size_t words = bytes / sizeof(Word);
  const auto blocks = static_cast<unsigned>((words + kThreads - 1) / kThreads);
  copy_words<<<blocks, kThreads, 0, stream>>>(static_cast<Word*>(dst), static_cast<const Word*>(src), words);
  RING_CUDA_CHECK(cudaGetLastError());
}

cudaPointerAttributes attributes_of(const void* p) {
  cudaPointerAttributes attributes;
  RING_CUDA_CHECK(cudaPointerGetAttributes(&attributes, p));
  return attributes;
}

bool here(const cudaPointerAttributes& a) {
  int device = -1;
  RING_CUDA_CHECK(cudaGetDevice(&device));
  return a.type == cudaMemoryTypeDevice && a.device == device;
}

// Returns true for page-locked host memory that has an address on the devices.
bool page_locked(const cudaPointerAttributes& a) { return a.type == cudaMemoryTypeHost && a.devicePointer; }

}  // namespace

bool try_small_copy(void* dst, const void* src, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0 || bytes > kSmallCopy) return false;
  const cudaPointerAttributes to = attributes_of(dst), from = attributes_of(src);
  if (!(here(to) && page_locked(from)) && !(page_locked(to) && here(from))) return false;
  const auto at = [](const cudaPointerAttributes& a) { return reinterpret_cast<std::uintptr_t>(a.devicePointer); };
  if (fits<uint4>(at(to), at(from), bytes))
    launch<uint4>(to.devicePointer, from.devicePointer, bytes, stream);
  else if (fits<std::uint32_t>(at(to), at(from), bytes))
    launch<std::uint32_t>(to.devicePointer, from.devicePointer, bytes, stream);
  else
    launch<unsigned char>(to.devicePointer, from.devicePointer, bytes, stream);
  return true;
}

}  // namespace ring::cuda
