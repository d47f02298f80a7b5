#pragma once
// Memory that an agent holds for a worker, so that it outlives it: two anonymous files, which take nothing until the
// worker fills them (checkpoint/memory_tier.h). Later attempts inherit the same. RINGMASTER_MEMORY has the numbers of
// the descriptors, "7,8".

#include <array>
#include <optional>
#include <string>

#include "job/socket.h"

namespace ring {

using KeptFiles = std::array<int, 2>;  // descriptors

// The agent's side. Error: the system has no such files.
class KeptMemory {
 public:
  KeptMemory();
  KeptFiles files() const {
    return {files_[0].get(), files_[1].get()};
  }  // closed by exec unless the child decides otherwise
  std::string numbers() const;
  const std::string& key() const { return key_; }  // that workers sign with what they keep

 private:
  std::array<Fd, 2> files_;
  std::string key_;
};

// The worker's side; nothing where no agent holds memory for it. Programs that it starts do not inherit them. Error:
// the variable names no such files.
std::optional<KeptFiles> kept_files();

}  // namespace ring
