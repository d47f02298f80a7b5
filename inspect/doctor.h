#pragma once
// What a machine has for training, and what of it would stop a run: facts first, then judgements that need no machine.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/devices.h"

namespace ring {

enum class Verdict : std::uint8_t {
  good,
  absent,  // not there, and not missed
  note,    // runs, with less than there could be
  stop,    // a training run would fail
};

struct Finding {
  std::string section, name, detail;
  Verdict verdict = Verdict::good;
  std::string fix{};  // what to do about a note or a stop
};

struct HostFacts {
  int cores = 0, threads = 0;                            // of this process; that a run would use
  std::uint64_t memory_total = 0, memory_available = 0;  // bytes, of what binds most: see core/host_memory.h
  std::uint64_t swap_available = 0;
  std::string memory_limit;  // what that is, where it is not the machine itself
  std::filesystem::path folder;
  std::uint64_t disk_free = 0;  // bytes, where the folder is
  bool writable = false;
  bool nvidia_driver = false;
};
HostFacts inspect_host(const std::filesystem::path& folder);

struct CudaBuild {
  bool built = false;
  std::string_view archs;  // "80 90a"
};

// Recorded choices of algorithms and kernels (kernels/tuning.h) that a run with run.tuning=auto would find.
struct ChoiceFacts {
  std::string store;     // file of this user; empty: no folder for it is known
  std::string problem;   // why the store cannot be read; empty: it can, or does not exist yet
  std::vector<std::string> stored, shipped;  // keys
};
ChoiceFacts inspect_choices();

std::vector<Finding> judge_host(const HostFacts&);
std::vector<Finding> judge_build();  // libraries that the build found
std::vector<Finding> judge_cuda(const BackendFacts&, const CudaBuild&, const HostFacts&);
std::vector<Finding> judge_choices(const BackendFacts&, const ChoiceFacts&);  // none without a GPU

// The table for the terminal; ends with what would stop a run, or that nothing would.
std::string report(const std::vector<Finding>&);
bool healthy(const std::vector<Finding>&);  // nothing stops a run

}  // namespace ring
