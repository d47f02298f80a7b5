#pragma once
// One rank's HDF5 file: a contiguous, unfiltered dataset for each slice, named after its tensor.
//
// libhdf5 only lays the file out, in memory (space allocated at once, never filled): when a disk is full while it
// writes, it can bring the whole process down later. Its headers and the tensors' bytes, at the offsets that it gave,
// are then put on the disk by plain writes, and the bytes are hashed on their way from the snapshot.

#include <filesystem>
#include <functional>

#include "checkpoint/plan.h"

namespace ring {

// Writes and syncs the file, fills in offset and xxh3 of every slice, and returns its size and hash.
SavedFile write_shard(const std::filesystem::path&, const std::vector<PlannedSlice>&, const Snapshot&);
// The same of tensors on the host that are made when they are wanted, one at a time, in the order of the slices.
SavedFile write_shard(const std::filesystem::path&, const std::vector<PlannedSlice>&,
                      const std::function<Tensor(const std::string& name)>& tensor_of);

// What is wrong with a file of the checkpoint at `folder`, naming file and tensors; empty when every hash matches.
std::vector<std::string> verify_shard(const std::filesystem::path& folder, const SavedFile&,
                                      const std::vector<PlannedSlice>&, bool from_disk);

}  // namespace ring
