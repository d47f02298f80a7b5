#pragma once
// Finding, verifying and loading checkpoints. Nothing is loaded from a file whose hash does not match.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state.h"

namespace ring {

// Everything that is wrong with a checkpoint, each line naming the file and, where known, the tensor; empty: nothing.
// `from_disk`: drop the page cache first, so that the disk itself is read.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& checkpoint, bool from_disk = false);

// The same, beside a run that goes on, which removes old checkpoints and replaces those of steps that it does again:
// neither is damage.
struct Verification {
  Manifest manifest;
  std::vector<std::string> problems;
  bool removed = false;     // while it was read, and then there are no problems
  FolderIdentity identity;  // of what was read
};
Verification verify_live(const std::filesystem::path& checkpoint, bool from_disk = false);

struct FoundCheckpoint {
  std::filesystem::path path;
  Manifest manifest;
  FolderIdentity identity;
  bool still_there() const { return identity && identity_of(path) == identity; }
};

// The newest checkpoint in the folder that verifies; warns about each newer one that does not, with what is wrong.
// Nothing when the folder holds none. Error when it holds some and all are damaged. Beside a run that goes on it is the
// newest of those that were not removed meanwhile.
std::optional<FoundCheckpoint> find_newest_verified(const std::filesystem::path& folder);

// Returns the checkpoint at a path, or the newest of the run or folder at that path, without reading its manifest.
// Throws Error as resolve_checkpoints() does.
FoundCheckpoint resolve_newest(const std::filesystem::path& path_or_run);

// How often a reader looks again where a run removes checkpoints faster than they can be read.
inline constexpr int kMostLooks = 100;
[[noreturn]] void fail_outpaced(const std::filesystem::path& run_or_folder);

// Reads the checkpoint that `find` gives, and where it was removed or replaced before `read` was done with it, the one
// that `find` gives then. Whatever goes wrong with one that is still there is thrown on.
FoundCheckpoint read_found(const std::function<FoundCheckpoint()>& find,
                           const std::function<void(FoundCheckpoint&)>& read);

// The bytes of one region of a tensor, put together from the saved slices. Those that are read whole are hashed on the
// way; Error: a hash differs.
Tensor read_tensor(const std::filesystem::path& checkpoint, const Manifest&, const std::string& name, const Region&);

// Fills the registry from a verified checkpoint that any number of ranks wrote: each wanted region is put together from
// the saved ones that it meets. Error, before anything is overwritten, lists every name that only one side has and
// every differing dtype or shape, but for what State::may_differ() explains.
Manifest load_state(const std::filesystem::path& checkpoint, State&, const Stream&);
// The same of a manifest whose files lie in `folder`.
void fill_state(const std::filesystem::path& folder, const Manifest&, State&, const Stream&);

// How the tensors whose names start with a prefix compare between a checkpoint and a registry.
struct WeightsReport {
  std::vector<std::string> matching;
  std::vector<std::string> missing;     // the registry wants them, the checkpoint lacks them
  std::vector<std::string> unexpected;  // the checkpoint has them, the registry does not know them
  std::vector<std::string> mismatched;  // "name: bf16[4,8] in the checkpoint, f32[4,8] here"
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string problems() const;  // one line for each kind
};
WeightsReport compare_weights(const Manifest&, const State&, const std::string& prefix);

// Loads only those tensors (no values, nothing else is touched). strict: Error unless all of them match; otherwise the
// matching ones are loaded and the report says what was left.
WeightsReport load_weights(const std::filesystem::path& checkpoint, State&, const std::string& prefix, const Stream&,
                           bool strict = true);

}  // namespace ring
