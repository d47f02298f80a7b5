#pragma once
// Finds, verifies and loads checkpoints. Slices that are read whole are checked against their hashes.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state.h"

namespace ring {

// Returns all problems of a checkpoint, one line each with the file and, if known, the tensor; empty if it is intact.
// `from_disk`: drops the page cache first, so that the disk itself is read.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& checkpoint, bool from_disk = false);

struct Verification {
  Manifest manifest;
  std::vector<std::string> problems;
  bool removed = false;     // removed while it was read; then `problems` is empty
  FolderIdentity identity;  // of the folder that was read
};
// Like verify_checkpoint(), but the run may still be training: a checkpoint that is removed or replaced meanwhile is
// not damaged.
Verification verify_live(const std::filesystem::path& checkpoint, bool from_disk = false);

struct FoundCheckpoint {
  std::filesystem::path path;
  Manifest manifest;
  FolderIdentity identity;
  bool still_there() const { return identity && identity_of(path) == identity; }
};

// Returns the newest intact checkpoint in the folder, and warns about each newer one that is damaged. Returns nullopt
// if there are no checkpoints; throws Error if all are damaged. The run may still be training: checkpoints that it
// removes meanwhile are skipped.
std::optional<FoundCheckpoint> find_newest_verified(const std::filesystem::path& folder);

// Returns the checkpoint at a path, or the newest of the run or folder at that path, without reading its manifest.
// Throws Error as resolve_checkpoints() does.
FoundCheckpoint resolve_newest(const std::filesystem::path& path_or_run);

// How often a reader retries when the run removes checkpoints faster than they can be read.
inline constexpr int kMaxAttempts = 100;
[[noreturn]] void fail_outpaced(const std::filesystem::path& run_or_folder);

// Calls `read` with the checkpoint that `find` returns, and retries with `find` if that checkpoint was removed or
// replaced before `read` returned. Rethrows exceptions of `read` if the checkpoint is still there.
FoundCheckpoint read_found(const std::function<FoundCheckpoint()>& find,
                           const std::function<void(FoundCheckpoint&)>& read);

// Returns one region of a tensor, on the CPU, assembled from the saved slices. Slices that are read whole are hashed;
// throws Error if a hash differs.
Tensor read_tensor(const std::filesystem::path& checkpoint, const Manifest&, const std::string& name, const Region&);

// Fills the State from a verified checkpoint, whatever number of ranks wrote it: each region is assembled from the
// saved slices that it intersects. Throws Error, before anything is overwritten, that lists every name that only one
// side has and every different dtype or shape, except those that State::allow_partial_load() allows.
Manifest load_state(const std::filesystem::path& checkpoint, State&, const Stream&);
// Like load_state(), with a given manifest, whose files are in `folder`.
void fill_state(const std::filesystem::path& folder, const Manifest&, State&, const Stream&);

// How the tensors whose names start with a prefix compare between a checkpoint and a State.
struct WeightsReport {
  std::vector<std::string> matching;
  std::vector<std::string> missing;     // in the State, but not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, but not in the State
  std::vector<std::string> mismatched;  // "name: bf16[4,8] in the checkpoint, f32[4,8] here"
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string problems() const;  // one line per kind of problem
};
WeightsReport compare_weights(const Manifest&, const State&, const std::string& prefix);

// Loads only the tensors whose names start with `prefix`, and no values. strict: throws Error unless there are any and
// all of them match; otherwise loads the matching ones, and the report lists the rest.
WeightsReport load_weights(const std::filesystem::path& checkpoint, State&, const std::string& prefix, const Stream&,
                           bool strict = true);

}  // namespace ring
