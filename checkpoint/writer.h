#pragma once
// Writing a checkpoint from a snapshot, by one rank or by several together, on any thread: it touches nothing of the
// run that goes on but the folder and what `group` exchanges texts with. Order of events, so that a crash at any moment
// leaves either the new checkpoint or the one before, never a mixture:
//
//   step-N.tmp-<attempt>/   each rank writes and syncs its shard; rank 0 writes and syncs manifest.json, and the folder
//   rename to step-N/       the commit; then the parent folder is synced
//   read back               every rank re-reads its shard from the disk and compares hashes; if they differ, the new
//                           checkpoint is removed
//   retention               only now older checkpoints are removed

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state.h"
#include "checkpoint/writer_token.h"
#include "comm/communicator.h"

namespace ring {

// Memory, a disk or a file system could not do what a save needed, here or on another rank. Older checkpoints are still
// there, nothing half-written is left where it could be removed, and another attempt may succeed.
struct SaveFailed : Error {
  using Error::Error;
};

// The ranks that write together. All of them call write_checkpoint with the same folder, step and retention.
struct WriterGroup {
  int rank = 0;
  int world = 1;
  // Everybody's text, in rank order, the same on every rank; also a barrier. Not needed for one rank alone.
  std::function<std::vector<std::string>(const std::string&)> all_gather;
  const WriterToken* token = nullptr;  // rank 0's; null: nobody else writes there
};
// The communicator outlives the group. While steps go on, it must be one that none of them uses, with a CommQueue of
// its own: otherwise the order of operations would differ between ranks.
WriterGroup writer_group(Communicator& host);

// `metadata`: a JSON object stored with it (rank 0's counts). Returns the path of the checkpoint. SaveFailed, on all
// ranks when it happens on one: the disk is full, a file system call fails, or the read-back differs. Error: ranks
// disagree about what there is to save. TakenOver or DirectoryMoved, on all ranks: rank 0's token no longer counts;
// nothing is committed.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder, std::int64_t step, const Snapshot&,
                                       const std::string& metadata, const Retention& = {}, const WriterGroup& = {});

// The end of a save: writes and syncs the manifest, syncs the folder `temporary`, which holds all shards, and moves it
// to `final`.
void commit_manifest(const Manifest&, const std::filesystem::path& temporary, const std::filesystem::path& final);

}  // namespace ring
