#pragma once
// Who writes what. Every rank describes what it holds, all exchange that, and each derives the same plan from it: a
// manifest whose slices name their file, and whose offsets and hashes are still open.

#include <map>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/state.h"

namespace ring {

std::string shard_name(int rank);  // "shard-00003.h5"
std::string describe_state(const Snapshot&);

// `described`: describe_state() of every rank, in rank order. A region held by several ranks is written by the one with
// the least to write so far. Error: ranks disagree about a dtype, shape or value, regions overlap in part or leave a
// gap.
Manifest make_plan(const std::vector<std::string>& described);

// The slices of one file, in the order of the manifest's names.
struct PlannedSlice {
  std::string name;
  DType dtype = DType::f32;
  SavedSlice* slice = nullptr;
};
std::vector<PlannedSlice> slices_of(Manifest&, const std::string& file);
std::map<std::string, std::vector<PlannedSlice>> slices_by_file(Manifest&);

}  // namespace ring
