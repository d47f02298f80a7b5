#pragma once
// Rewrites a checkpoint as if a different number of ranks had written it.

#include <filesystem>

namespace ring {

// Reads a checkpoint and writes <folder>/step-N as `ranks` ranks, with the same values, metadata and tensor bits. Rows
// (dim 0) are divided evenly. Holds two copies of the tensors of one new shard at a time. Compares both checkpoints,
// read from the disk, before it returns the new path. Throws Error and leaves nothing behind if the checkpoint is
// damaged, the folder already has one of this step, or the new one cannot be written.
std::filesystem::path reshard_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                                         int ranks);

struct Resharded {
  std::filesystem::path from, to;
};
// Reshards the newest checkpoint at a path. If the run is still training and removes that checkpoint, starts again with
// the newest one left.
Resharded reshard_newest(const std::filesystem::path& path_or_run, const std::filesystem::path& folder, int ranks);

}  // namespace ring
