#pragma once
// Writes a checkpoint from a snapshot, by one rank or several, on any thread. Training can continue, because only the
// folder and the group's all_gather are used. The order of operations guarantees that a crash at any moment leaves the
// new checkpoint or the previous one, never a mixture:
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

// Thrown if memory, a disk or a file system failed during a save, on this or another rank. Older checkpoints still
// exist, partial files are removed if possible, and another attempt may succeed.
struct SaveFailed : Error {
  using Error::Error;
};

// Ranks that write a checkpoint together. All of them call write_checkpoint() with the same folder, step and retention.
struct WriterGroup {
  int rank = 0;
  int world = 1;
  // Returns the texts of all ranks, in rank order, on every rank; also acts as a barrier. May be null for one rank.
  std::function<std::vector<std::string>(const std::string&)> all_gather;
  const WriterToken* token = nullptr;  // used only on rank 0; null if no other process can write in the folder
};
// The communicator must outlive the group. While training continues, it must be a communicator that no step uses, with
// its own CommQueue: otherwise the order of operations would differ between ranks.
WriterGroup make_writer_group(Communicator& host);

// Writes, commits and verifies a checkpoint, applies the retention and returns the checkpoint's path. `metadata`: a
// JSON object to store; only that of rank 0 is used. Throws on all ranks: SaveFailed if on any rank the disk is full, a
// file system call fails or the read-back differs; Error if ranks disagree about what to save; WriterSuperseded or
// DirectoryMoved, with nothing committed, if rank 0's token is no longer valid.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder, std::int64_t step, const Snapshot&,
                                       const std::string& metadata, const Retention& = {}, const WriterGroup& = {});

// Ends a save: writes and syncs the manifest, syncs the folder `temporary`, which holds all shards, and renames the
// folder to `final`.
void commit_manifest(const Manifest&, const std::filesystem::path& temporary, const std::filesystem::path& final);

}  // namespace ring
