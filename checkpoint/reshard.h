#pragma once
// Rewrites a checkpoint as if a different number of ranks had written it.

#include <filesystem>

namespace ring {

// Reads a checkpoint and writes <folder>/step-N with the shards of `ranks` ranks; values, metadata and tensor bits are
// the same. Rows (dim 0) are divided evenly. Holds two copies of the tensors of one new shard at a time. Compares both
// checkpoints, read from the disk, before it returns the new path. Throws Error and leaves nothing behind if the
// checkpoint is damaged, if the folder already has a checkpoint of this step, or if the new checkpoint cannot be
// written.
std::filesystem::path reshard_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                                         int ranks);

struct Resharded {
  std::filesystem::path from, to;
};
// Reshards the newest checkpoint at a path. If the run is still training and removes that checkpoint, starts again with
// the newest checkpoint that is left.
Resharded reshard_newest(const std::filesystem::path& path_or_run, const std::filesystem::path& folder, int ranks);

}  // namespace ring
