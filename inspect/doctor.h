#pragma once
// Checks a machine for training: inspect_ functions collect facts, judge_ functions turn facts into findings without
// touching the machine.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/devices.h"

namespace ring {

enum class Verdict : std::uint8_t {
  good,
  absent,  // not present, and not needed
  note,    // training works, but not as well as it could
  stop,    // a training run would fail
};

struct Finding {
  std::string section, name, detail;
  Verdict verdict = Verdict::good;
  std::string fix{};  // how to resolve a note or a stop
};

struct HostFacts {
  int cores = 0, threads = 0;                            // online cores of the machine; threads that a run would use
  std::uint64_t memory_total = 0, memory_available = 0;  // bytes within the tightest limit (core/host_memory.h)
  std::uint64_t swap_available = 0;
  std::string memory_limit;  // source of the tightest limit; empty if it is the machine's memory
  std::filesystem::path folder;
  std::uint64_t disk_free = 0;  // free bytes on the folder's file system
  bool writable = false;
  bool nvidia_driver = false;
};
HostFacts inspect_host(const std::filesystem::path& folder);

struct CudaBuild {
  bool built = false;
  std::string_view archs;  // compute capabilities of the build, e.g. "80 90a"
};

// Recorded choices of algorithms and kernels (kernels/tuning.h) that a run with run.tuning=auto would use.
struct ChoiceFacts {
  std::string store;    // this user's file; empty if its folder is unknown
  std::string problem;  // why the store cannot be read; empty if it can be read or does not exist yet
  std::vector<std::string> stored, shipped;  // keys in the store, and keys in this program's tables
};
ChoiceFacts inspect_choices();

std::vector<Finding> check_host(const HostFacts&);
std::vector<Finding> check_build();  // optional libraries: found, switched off, or missing in the build
std::vector<Finding> check_cuda(const BackendFacts&, const CudaBuild&, const HostFacts&);
std::vector<Finding> check_choices(const BackendFacts&, const ChoiceFacts&);  // returns no findings without a GPU

// Returns a table for the terminal. Its last line counts the findings that would stop a run.
std::string findings_table(const std::vector<Finding>&);
bool is_healthy(const std::vector<Finding>&);  // true if no finding would stop a run

}  // namespace ring
