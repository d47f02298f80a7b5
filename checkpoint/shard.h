#pragma once
// One rank's HDF5 file: a contiguous, unfiltered dataset for each slice, named after its tensor.
//
// libhdf5 only lays the file out (space allocated at once, never filled); the bytes then go to the offsets that it
// gave, by plain writes, so that a full disk is one clear error and the bytes are hashed on their way from memory.

#include <filesystem>

#include "checkpoint/plan.h"
#include "core/stream.h"

namespace ring {

// Writes and syncs the file, fills in offset and xxh3 of every slice, and returns its size and hash.
SavedFile write_shard(const std::filesystem::path&, const std::vector<PlannedSlice>&, const State&, const Stream&);

// What is wrong with a file of the checkpoint at `folder`, naming file and tensors; empty when every hash matches.
std::vector<std::string> verify_shard(const std::filesystem::path& folder, const SavedFile&,
                                      const std::vector<PlannedSlice>&, bool from_disk);

}  // namespace ring
