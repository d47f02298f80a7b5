#pragma once
// Memory that an agent holds for a worker, so that it survives the worker: two anonymous files, which are empty until
// the worker fills them (checkpoint/memory_tier.h). Workers of later attempts inherit the same files. RINGMASTER_MEMORY
// contains their file descriptors, e.g. "7,8".

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
  // Returns the file descriptors. FD_CLOEXEC is set; a child that should keep the files must clear it.
  AgentMemoryFiles files() const { return {files_[0].get(), files_[1].get()}; }
  std::string fds_text() const;
  const std::string& key() const { return key_; }  // key with which workers sign their snapshots

 private:
  std::array<Fd, 2> files_;
  std::string key_;
};

// The worker's side: returns the file descriptors, which programs started by the worker do not inherit; nullopt if no
// agent holds memory for this worker. Throws Error if the variable does not name such files.
std::optional<AgentMemoryFiles> agent_memory_files();

}  // namespace ring
