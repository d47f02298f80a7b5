#pragma once
// Decides which rank writes which slice. Ranks exchange descriptions of what they hold, and each rank derives the same
// plan: a manifest whose slices name their file, but have no offsets and hashes yet.

#include <map>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/state.h"

namespace ring {

std::string shard_name(int rank);             // e.g. "shard-00003.h5"
std::string describe_state(const Snapshot&);  // returns the description as JSON text

// `state_descriptions`: describe_state() of every rank, in rank order. If several ranks hold a region, it is written by
// the rank that has the fewest bytes to write so far. Throws Error if ranks disagree about a dtype, shape or value, or
// if regions overlap partially or leave a gap.
Manifest plan_shards(const std::vector<std::string>& state_descriptions);

// Slices in one file, ordered by name as in the manifest. The pointers refer to the manifest.
struct PlannedSlice {
  std::string name;
  DType dtype = DType::f32;
  SavedSlice* slice = nullptr;
};
std::vector<PlannedSlice> slices_of(Manifest&, const std::string& file);
std::map<std::string, std::vector<PlannedSlice>> slices_by_file(Manifest&);

}  // namespace ring
