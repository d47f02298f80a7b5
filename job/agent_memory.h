#pragma once
// Memory that an agent holds for a worker, so that it survives the worker: two anonymous files, which are empty until
// the worker fills them (checkpoint/memory_tier.h). Workers of later attempts inherit the same files. RINGMASTER_MEMORY
// contains their descriptors, "7,8".

#include <array>
#include <optional>
#include <string>

#include "job/socket.h"

namespace ring {

using AgentMemoryFiles = std::array<int, 2>;  // file descriptors

// The agent's side. The constructor throws Error if the system cannot create the files.
class AgentMemory {
 public:
  AgentMemory();
  // Returns the descriptors. FD_CLOEXEC is set; a child that is to keep them must clear it.
  AgentMemoryFiles files() const { return {files_[0].get(), files_[1].get()}; }
  std::string numbers() const;
  const std::string& key() const { return key_; }  // workers sign their snapshots with it

 private:
  std::array<Fd, 2> files_;
  std::string key_;
};

// The worker's side: returns the descriptors, which programs started by the worker do not inherit; nullopt if no agent
// holds memory for it. Throws Error if the variable does not name such files.
std::optional<AgentMemoryFiles> agent_memory_files();

}  // namespace ring
