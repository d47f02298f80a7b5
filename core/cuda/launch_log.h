#pragma once
// Remembers the names of the newest kernel launches, and which of them are known to have ended.

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

// Thread-safe. Logging a launch takes about 20 ns, and a few microseconds if it is the kernel's first.
class LaunchLog {
 public:
  static constexpr std::uint64_t kMaxLaunches = 4096;  // number of launches remembered: several steps of a small model
  static constexpr std::size_t kMaxNames = 24;         // maximum number of kernel names in a message

  void add_kernel(cudaStream_t, const void* kernel);
  void add_call(cudaStream_t, const char* name);  // name: a string literal
  std::uint64_t launch_count() const;             // launches so far, over all streams
  // Records that the stream's launches among the first `count` launches over all streams have ended.
  void mark_ended(cudaStream_t, std::uint64_t count);
  // Returns a sentence, without its full stop, that names the launches that are not known to have ended, oldest first;
  // "" if there are none. With one_at_a_time (CUDA_LAUNCH_BLOCKING=1) only the newest launch can have failed.
  std::string describe_unfinished(bool one_at_a_time) const;

 private:
  struct Launch {
    cudaStream_t stream = nullptr;
    const char* name = nullptr;
  };
  using NameCounts = std::vector<std::pair<std::string_view, std::uint64_t>>;  // a kernel's name and its launches

  void add(cudaStream_t stream, const char* name) { ring_[count_++ % kMaxLaunches] = {stream, name}; }
  bool has_ended(std::uint64_t launch) const;

  mutable std::mutex mutex_;
  std::array<Launch, kMaxLaunches> ring_;
  std::uint64_t count_ = 0;
  // Kernel names by kernel handle. ring_ points to these strings, which an unordered_map never moves.
  std::unordered_map<const void*, std::string> names_;
  std::unordered_map<cudaStream_t, std::uint64_t> ended_;  // the largest `count` of mark_ended(), by stream
};

// Returns a kernel's name without its return type, parameters and namespaces: "sm90_forward<64, 2, true>".
std::string short_kernel_name(std::string_view demangled);

}  // namespace ring::cuda
