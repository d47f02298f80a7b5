#pragma once
// A checkpoint written again as another number of ranks would have written it.

#include <filesystem>

namespace ring {

// Reads a checkpoint and writes <folder>/step-N as `ranks` ranks: the same values, metadata and bits of every tensor,
// whose rows (dim 0) are divided evenly. Holds the tensors of one new shard at a time, twice. Both sides are read from
// the disk and compared before it returns the path. Error: the checkpoint is damaged, there is one of this step in the
// folder, or it cannot be written; nothing is left then.
std::filesystem::path reshard_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                                         int ranks);

// The same of the newest checkpoint at a path. Beside a run that trains, which removes old checkpoints, it starts again
// with the one that is the newest then.
struct Resharded {
  std::filesystem::path from, to;
};
Resharded reshard_newest(const std::filesystem::path& path_or_run, const std::filesystem::path& folder, int ranks);

}  // namespace ring
