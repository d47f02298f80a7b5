#pragma once
// Who may commit checkpoints of a run. Locks of files do not hold between hosts on every shared file system, and a
// process that was believed dead may go on; so each process that begins to write takes a token, a number greater than
// all before it, as a file RUN/writers/<number>.json that only one process can create. The greatest counts: whoever
// finds a greater one than his own commits nothing any more. Manifests say under which token they were written.
//
// In this order nothing slips through: a process takes its token, then moves away what others have half-written
// (remove_stale), and only then looks for the newest checkpoint. One that was overtaken between its last look at the
// tokens and its rename finds its folder gone, or has committed before the other one looked.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/check.h"
#include "job/socket.h"

namespace ring {

// Another process has taken over: nothing that this one could write may count.
struct TakenOver : Error {
  using Error::Error;
};

// The run's directory was removed, moved or replaced: what this process writes there could be lost or mixed with
// another run.
struct DirectoryMoved : Error {
  using Error::Error;
};

struct TokenHolder {
  std::int64_t token = 0;
  std::string host, since;  // since: UTC
  std::int64_t pid = 0;
};

class WriterToken {
 public:
  // Takes the next token of the run in the folder `run`. Error: it cannot be written.
  explicit WriterToken(const std::filesystem::path& run);
  std::int64_t number() const { return own_.token; }
  // Throws TakenOver, naming both holders, if a greater token was taken since, and DirectoryMoved if the run's path no
  // longer leads to the directory in which this token was taken.
  void check() const;

 private:
  void check_directory() const;

  std::filesystem::path run_;
  Fd directory_;  // of the run; while it is open, no other directory gets its inode number
  TokenHolder own_;
};

// The greatest one; nothing: none was taken yet.
std::optional<TokenHolder> newest_holder(const std::filesystem::path& run);

}  // namespace ring
