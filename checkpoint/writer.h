#pragma once
// Writing a checkpoint, by one rank or by several together. Order of events, so that a crash at any moment leaves
// either the new checkpoint or the one before, never a mixture:
//
//   step-N.tmp-<attempt>/   each rank writes and syncs its shard; rank 0 writes and syncs manifest.json, and the folder
//   rename to step-N/       the commit; then the parent folder is synced
//   read back               every rank re-reads its shard from the disk and compares hashes
//   retention               only now older checkpoints are removed

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/state.h"

namespace ring {

// The ranks that write together. All of them call write_checkpoint with the same folder, step and retention.
struct WriterGroup {
  int rank = 0;
  int world = 1;
  // Everybody's text, in rank order, the same on every rank; also a barrier. Not needed for one rank alone.
  std::function<std::vector<std::string>(const std::string&)> all_gather;
};

// `metadata`: a JSON object stored with it (rank 0's counts). `stream`: where device tensors are copied from; work
// queued on it is waited for. Returns the path of the checkpoint. Error, on all ranks when it happens on one: the disk
// is full, a file system call fails, ranks disagree, or the read-back differs; older checkpoints are then still there.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder, std::int64_t step, const State&,
                                       const std::string& metadata, const Stream& stream, const Retention& = {},
                                       const WriterGroup& = {});

}  // namespace ring
