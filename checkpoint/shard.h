#pragma once
// The HDF5 file of one rank: a contiguous, unfiltered dataset for each slice, with the tensor's name.
//
// libhdf5 only creates the layout, in memory (early allocation, no fill values): if a disk fills up while libhdf5
// writes, libhdf5 can later crash the whole process. The HDF5 headers, and the tensors' bytes at the offsets that
// libhdf5 assigned, are then written with pwrite; the bytes are hashed on their way from the snapshot.

#include <filesystem>
#include <functional>

#include "checkpoint/plan.h"

namespace ring {

// Writes and syncs the file, fills in `offset` and `xxh3` of every slice, and returns the file's size and hash.
SavedFile write_shard(const std::filesystem::path&, const std::vector<PlannedSlice>&, const Snapshot&);
// Same, for host tensors that tensor_of() creates on demand: one at a time, in the order of the slices' offsets.
SavedFile write_shard(const std::filesystem::path&, const std::vector<PlannedSlice>&,
                      const std::function<Tensor(const std::string& name)>& tensor_of);

// Returns the problems of a file of the checkpoint in `folder`, each with the file and, if known, the tensor; empty if
// every hash matches.
std::vector<std::string> verify_shard(const std::filesystem::path& folder, const SavedFile&,
                                      const std::vector<PlannedSlice>&, bool from_disk);

}  // namespace ring
