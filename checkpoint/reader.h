#pragma once
// Finds, verifies and loads checkpoints. Slices that are read completely are checked against their hashes.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state.h"

namespace ring {

// Returns all problems of a checkpoint, one line each, with the file and, if known, the tensor; empty if it is intact.
// `from_disk`: true to drop the page cache first, so that the disk itself is read.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& checkpoint, bool from_disk = false);

struct Verification {
  Manifest manifest;
  std::vector<std::string> problems;
  bool removed = false;     // the checkpoint was removed while it was read; `problems` is then empty
  FolderIdentity identity;  // identity of the folder that was read
};
// Like verify_checkpoint(), but the run may still be training: a checkpoint that is removed or replaced in the meantime
// does not count as damaged.
Verification verify_during_training(const std::filesystem::path& checkpoint, bool from_disk = false);

struct FoundCheckpoint {
  std::filesystem::path path;
  Manifest manifest;
  FolderIdentity identity;
  bool still_there() const { return identity && identity_of(path) == identity; }
};

// Returns the newest intact checkpoint in the folder, and warns about each newer checkpoint that is damaged. Returns
// nullopt if there are no checkpoints; throws Error if all are damaged. The run may still be training: checkpoints that
// it removes in the meantime are skipped.
std::optional<FoundCheckpoint> find_newest_verified(const std::filesystem::path& folder);

// Returns the checkpoint at a path, or the newest checkpoint of the run or folder at that path, without reading the
// manifest. Throws Error like resolve_checkpoints().
FoundCheckpoint resolve_newest(const std::filesystem::path& path_or_run);

// How often a reader retries if the run removes checkpoints faster than they can be read.
inline constexpr int kMaxAttempts = 100;
[[noreturn]] void fail_outpaced(const std::filesystem::path& run_or_folder);

// Calls `read` with the checkpoint that `find` returns. Calls both again if that checkpoint was removed or replaced
// before `read` returned. Rethrows exceptions of `read` if the checkpoint still exists.
FoundCheckpoint read_found(const std::function<FoundCheckpoint()>& find,
                           const std::function<void(FoundCheckpoint&)>& read);

// Returns one region of a tensor, on the CPU, assembled from the saved slices. Slices that are read completely are
// hashed; throws Error if a hash differs.
Tensor read_tensor(const std::filesystem::path& checkpoint, const Manifest&, const std::string& name, const Region&);

// Fills the State from a verified checkpoint, whatever number of ranks wrote it: each region is assembled from the
// saved slices that intersect it. Throws Error, before anything is overwritten, with every name that exists on only one
// side and every dtype or shape that differs, except those that State::allow_partial_load() allows.
Manifest load_state(const std::filesystem::path& checkpoint, State&, const Stream&);
// Like load_state(), with a given manifest; the manifest's files are in `folder`.
void fill_state(const std::filesystem::path& folder, const Manifest&, State&, const Stream&);

// Sets the scalar values of the State that are in the manifest; leaves the tensors untouched.
void set_values(const Manifest&, const State&);

// Result of comparing the tensors whose names start with a prefix between a checkpoint and a State.
struct WeightsReport {
  std::vector<std::string> matching;
  std::vector<std::string> missing;     // names in the State that the checkpoint lacks
  std::vector<std::string> unexpected;  // names in the checkpoint that the State lacks
  std::vector<std::string> mismatched;  // e.g. "name: bf16[4,8] in the checkpoint, f32[4,8] here"
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string problems() const;  // one line per kind of problem
};
WeightsReport compare_weights(const Manifest&, const State&, const std::string& prefix);

// Loads only the tensors whose names start with `prefix`, and no values. strict: throws Error unless there are such
// tensors and all of them match; without it, loads the matching ones, and the report lists the others.
WeightsReport load_weights(const std::filesystem::path& checkpoint, State&, const std::string& prefix, const Stream&,
                           bool strict = true);

}  // namespace ring
