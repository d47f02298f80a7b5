#include "checkpoint/reshard.h"

#include <unistd.h>

#include "checkpoint/compare.h"
#include "checkpoint/files.h"
#include "checkpoint/plan.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard.h"
#include "checkpoint/writer.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

// Returns the rank's share of the rows (dim 0), which are divided evenly. A scalar or an empty tensor has no rows to
// divide: returns the whole region, which rank 0 writes.
Region part_of(const Shape& shape, int rank, int ranks) {
  Region part{shape, shape};
  for (int i = 0; i < shape.size(); ++i) part.start[i] = 0;
  if (shape.numel() == 0 || shape.size() == 0) return part;
  part.start[0] = shape[0] * rank / ranks;
  part.size[0] = shape[0] * (rank + 1) / ranks - part.start[0];
  return part;
}

SavedTensor divided(const SavedTensor& saved, int ranks) {
  SavedTensor t{saved.dtype, saved.global_shape, {}};
  const bool rows = saved.global_shape.size() > 0 && saved.global_shape.numel() > 0;
  for (int rank = 0; rank < (rows ? ranks : 1); ++rank) {
    const Region part = part_of(saved.global_shape, rank, ranks);
    const std::uint64_t bytes = static_cast<std::uint64_t>(part.numel()) * size_of(saved.dtype);
    if (bytes > 0 || !rows) t.slices.push_back({part, shard_name(rank), 0, bytes, ""});
  }
  return t;
}

Manifest planned(const Manifest& source, int ranks) {
  Manifest plan = source;
  plan.world = ranks;
  plan.files.clear();
  for (auto& [name, t] : plan.tensors) t = divided(t, ranks);
  return plan;
}

Snapshot read_part(const fs::path& checkpoint, const Manifest& source, const std::vector<PlannedSlice>& slices) {
  State state;
  for (const PlannedSlice& s : slices)
    state.add({s.name, source.tensors.at(s.name).global_shape, s.slice->region.start,
               read_tensor(checkpoint, source, s.name, s.slice->region)});
  return state.snapshot(Stream::cpu(1));
}

Manifest sound_manifest(const fs::path& checkpoint) {
  Verification v = verify_during_training(checkpoint, /*from_disk=*/true);
  if (v.removed) fail(checkpoint.string(), " was removed while it was read, as a run does with old checkpoints");
  if (!v.problems.empty()) fail(checkpoint.string(), " is damaged, so nothing was written: ", v.problems.front());
  return std::move(v.manifest);
}

void check_equal(const fs::path& checkpoint, const Manifest& source, const fs::path& written) {
  const std::vector<std::string> problems = verify_checkpoint(written, /*from_disk=*/true);
  if (!problems.empty()) fail("the written checkpoint cannot be read back: ", problems.front());
  const CheckpointDifference d = compare_checkpoints(checkpoint, source, written, read_manifest(written));
  if (!d.none())
    fail(written.string(), " differs from ", checkpoint.string(), " in ",
         d.tensors.empty() ? d.values.front() : d.tensors.front().name);
}

}  // namespace

fs::path reshard_checkpoint(const fs::path& checkpoint, const fs::path& folder, int ranks) {
  RING_CHECK(ranks >= 1, ranks, " ranks");
  const Manifest source = sound_manifest(checkpoint);
  Manifest plan = planned(source, ranks);
  const fs::path final = folder / checkpoint_name(source.step);
  std::error_code error;
  if (fs::exists(fs::symlink_status(final, error)))
    fail(final.string(), " already exists: give a different folder, or remove it");
  const fs::path temporary = final.string() + ".tmp-" + std::to_string(::getpid());
  try {
    fs::create_directories(temporary);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<PlannedSlice> slices = slices_of(plan, shard_name(rank));
      plan.files.push_back(write_shard(temporary / shard_name(rank), slices, read_part(checkpoint, source, slices)));
    }
    commit_manifest(plan, temporary, final);
    check_equal(checkpoint, source, final);
  } catch (...) {
    fs::remove_all(temporary, error);
    remove_checkpoint(final);
    throw;
  }
  return final;
}

Resharded reshard_newest(const fs::path& path_or_run, const fs::path& folder, int ranks) {
  fs::path written;
  const FoundCheckpoint from =
      read_found([&] { return resolve_newest(path_or_run); },
                 [&](const FoundCheckpoint& f) { written = reshard_checkpoint(f.path, folder, ranks); });
  return {from.path, written};
}

}  // namespace ring
