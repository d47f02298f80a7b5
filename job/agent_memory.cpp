#include "job/agent_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/check.h"
#include "job/secret.h"

namespace ring {
namespace {

// Returns true only if `file` is a memfd: ordinary files have no seals.
bool is_kept(int file) { return fcntl(file, F_GET_SEALS) >= 0; }

}  // namespace

AgentMemory::AgentMemory() : key_(random_secret()) {
  for (Fd& file : files_) {
    file = Fd(memfd_create("ringmaster-kept", MFD_CLOEXEC));
    if (!file) fail("launch: cannot create a file in memory: ", std::strerror(errno));
  }
}

std::string AgentMemory::fds_text() const { return str(files_[0].get(), ",", files_[1].get()); }

std::optional<AgentMemoryFiles> agent_memory_files() {
  const char* const text = std::getenv("RINGMASTER_MEMORY");
  if (!text || !*text) return std::nullopt;
  AgentMemoryFiles files{-1, -1};
  char comma = 0;
  std::istringstream words(text);
  words >> files[0] >> comma >> files[1];
  if (!words || comma != ',' || !is_kept(files[0]) || !is_kept(files[1]))
    fail("environment: RINGMASTER_MEMORY='", text,
         "' is not a list of descriptors that `ringmaster launch` opened: unset it");
  for (const int file : files) fcntl(file, F_SETFD, FD_CLOEXEC);
  return files;
}

}  // namespace ring
