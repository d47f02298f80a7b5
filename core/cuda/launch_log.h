#pragma once
// The newest kernel launches, by name, and which of them are known to have ended.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ring::cuda {

// Any thread may call it. A launch costs some 20 ns, the first one of a kernel some microseconds.
class LaunchLog {
 public:
  static constexpr std::uint64_t kMaxLaunches = 4096;  // that are remembered: several steps of a small model
  static constexpr std::size_t kMaxNames = 24;         // in a message

  void add_kernel(cudaStream_t, const void* kernel);
  void add_call(cudaStream_t, const char* name);  // name: a literal
  std::uint64_t count() const;
  void ended(cudaStream_t, std::uint64_t count);
  // Returns a sentence without a full stop that names the launches not known to have ended, oldest first; empty if
  // there are none. With one_at_a_time (CUDA_LAUNCH_BLOCKING=1) only the newest launch can have failed.
  std::string describe_unfinished(bool one_at_a_time) const;

 private:
  struct Launch {
    cudaStream_t stream = nullptr;
    const char* name = nullptr;
  };
  using Names = std::vector<std::pair<std::string_view, std::uint64_t>>;  // and how many launches each has

  void add(cudaStream_t stream, const char* name) { ring_[count_++ % kMaxLaunches] = {stream, name}; }
  bool has_ended(std::uint64_t launch) const;

  mutable std::mutex mutex_;
  std::array<Launch, kMaxLaunches> ring_;
  std::uint64_t count_ = 0;
  std::unordered_map<const void*, std::string> names_;     // of kernels; the strings stay where they are
  std::unordered_map<cudaStream_t, std::uint64_t> ended_;  // of each stream, as ended() was told
};

// Returns a kernel's name without its result, parameters and namespaces: "sm90_forward<64, 2, true>".
std::string short_kernel_name(std::string_view demangled);

}  // namespace ring::cuda
