#include "core/cuda/page_locks.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "core/cpu/thread_pool.h"
#include "core/cuda/check.h"
#include "core/cuda/handles.h"
#include "core/cuda/pinned_staging.h"
#include "core/host_tensor.h"
#include "core/numa.h"

namespace ring::cuda {
namespace {

constexpr std::size_t kAtOnce = std::size_t{16} << 20;  // below it, the caller locks the pages, faster than threads

// Returns the NUMA node closest to the GPU; nullopt if the process already has a memory policy.
std::optional<int> node_of(int device) {
  std::array<char, 32> bus{};
  if (has_memory_policy() || cudaDeviceGetPCIBusId(bus.data(), bus.size(), device) != cudaSuccess) return {};
  return memory_node_of(bus.data());
}

void lock(int device, std::byte* begin, std::size_t bytes) {
  const OnDevice on(device);
  RING_CUDA_CHECK(cudaHostRegister(begin, bytes, cudaHostRegisterPortable));
}

// Unlocks pages. First waits for all copies on the device, because the caller of a copy may have failed halfway.
// Ignores errors of a failed GPU, which its next use reports.
void unlock(int device, std::byte* begin) try {
  const OnDevice on(device);
  cudaDeviceSynchronize();
  cudaHostUnregister(begin);
  cudaGetLastError();
} catch (const Error&) {
}

// Returns a quarter of the cores, at most 8: the program needs the others, and more threads do not lock faster.
int threads() { return std::clamp(default_threads() / 4, 1, 8); }

std::shared_ptr<void> take(std::size_t bytes, Device device) {
  if (bytes >= kAtOnce) return page_locker(device.index).allocate(bytes);
  std::shared_ptr<void> memory = allocate_pinned(bytes);
  std::memset(memory.get(), 0, bytes);
  return memory;
}

[[maybe_unused]] const bool registered =
    register_host_memory(Backend::cuda, {take, [](Device device) { return page_locker(device.index).facts(); }});

}  // namespace

PageLocker& page_locker(int device) {
  static std::mutex mutex;
  static std::map<int, PageLocker> all;
  const std::lock_guard held(mutex);
  const auto found = all.find(device);
  if (found != all.end()) return found->second;
  const PageLockCalls calls{[device](std::byte* p, std::size_t n) { lock(device, p, n); },
                            [device](std::byte* p) { unlock(device, p); }};
  return all.try_emplace(device, calls, threads(), node_of(device)).first->second;
}

}  // namespace ring::cuda
