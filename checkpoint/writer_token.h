#pragma once
// Decides which process may commit checkpoints of a run. File locks do not work between hosts on every shared file
// system, and a process that was believed dead may still be running. Each process that starts to write therefore takes
// a token: a number greater than all previous ones, as a file RUN/writers/<number>.json that only one process can
// create. The greatest token is valid: a process that finds a token greater than its own commits nothing more.
// Manifests record the token under which they were written.
//
// The order of steps leaves no gap: a process takes its token, then moves away what other processes have half-written
// (remove_stale_entries), and only then looks for the newest checkpoint. A process that was overtaken between its last
// check of the tokens and its rename either finds that its folder is gone, or has committed before the new process
// looked.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/check.h"
#include "job/socket.h"

namespace ring {

// Thrown if another process has taken over the run: nothing that this process writes may be used.
struct WriterSuperseded : Error {
  using Error::Error;
};

// Thrown if the run's directory was removed, moved or replaced: files that this process writes there could be lost or
// mixed with those of another run.
struct DirectoryMoved : Error {
  using Error::Error;
};

struct TokenHolder {
  std::int64_t token = 0;
  std::string host, since;  // since: UTC time at which the token was taken
  std::int64_t pid = 0;
};

class WriterToken {
 public:
  // Takes the next token of the run in the folder `run`. Throws Error if the token cannot be written.
  explicit WriterToken(const std::filesystem::path& run);
  std::int64_t number() const { return own_.token; }
  // Throws WriterSuperseded, naming both holders, if a greater token has been taken, and DirectoryMoved if the run's
  // path no longer leads to the directory in which this token was taken.
  void check() const;

 private:
  void check_directory() const;

  std::filesystem::path run_;
  Fd directory_;  // the run's directory; while it is open, no other directory gets its inode number
  TokenHolder own_;
};

// Returns the holder of the greatest token; nullopt if no token was taken yet.
std::optional<TokenHolder> newest_holder(const std::filesystem::path& run);

}  // namespace ring
