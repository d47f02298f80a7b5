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

}  // namespace ring
