#pragma once
// The newest snapshots of this rank in memory that the launcher keeps (job/kept_memory.h), so that a worker that dies
// costs the steps since then and no reading of files.
//
// There are two slots, each a file in memory: the bytes of all tensors, and after them a signed manifest of this rank's
// part with a hash of each. A slot that is written to has no manifest until all of it is there, so what a dead worker
// leaves is whole or does not count; the other slot holds the snapshot before. Checkpoints are written from the same
// copies, so the tier costs one copy of the state more than they do.

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/state.h"
#include "comm/communicator.h"
#include "job/kept_memory.h"
#include "job/secret.h"

namespace ring {

class MemoryTier {
 public:
  // identity: what must be the same for a snapshot to count: settings, data, program, this rank and how many there are.
  // key: signs the manifests, so that nobody else's count.
  MemoryTier(const KeptFiles& files, std::string identity, std::string key);

  // The steps that can be loaded, ascending: whole, of this identity, and every hash matches. What is damaged is a
  // warning.
  std::vector<std::int64_t> whole_steps() const;
  // Fills the registry from one of them, and returns what else was saved with it. Error: it does not fit.
  Manifest load(std::int64_t step, State&, const Stream&);
  std::filesystem::file_time_type loaded_from() const { return loaded_from_; }  // when that was sealed

  // Takes the memory for snapshots of `state` and locks its pages for the stream's device. What other settings have
  // left is removed. Error: there is not enough.
  void reserve(const State& state, const Stream& stream);
  void clear();                 // gives all memory back, and what is in it
  std::uint64_t bytes() const;  // that both slots take of the host

  // Into the slot with the older snapshot, which counts no longer; not into the one that hold() was told of. As
  // State::snapshot(). It counts once seal() has returned, which any thread may call, before the next take().
  Snapshot take(const State&, const Stream&);
  void seal(const Snapshot&, std::int64_t step, const std::string& metadata);
  void hold() { held_ = latest_; }  // a checkpoint is being written from the latest one
  void release() { held_ = -1; }
  void forget();  // the steps of both: the run has gone another way

 private:
  struct Slot {
    int file = -1;
    std::shared_ptr<void> map;  // all of the file
    SnapshotRoom room;          // behind the header
  };

  std::optional<Manifest> read(const Slot&) const;
  std::string signature(const std::string& manifest) const { return hmac(key_, identity_ + "\n" + manifest); }
  void make_room(Slot&, std::uint64_t bytes, Device);

  std::array<Slot, 2> slots_;
  std::string identity_, key_;
  int latest_ = 0, held_ = -1;
  std::filesystem::file_time_type loaded_from_{};
};

// What the launcher keeps for this process; null: it is not ours, and keeps nothing. facts: what identity stands for.
std::unique_ptr<MemoryTier> open_memory_tier(const std::vector<std::string>& facts);

// Takes the room that a tier needs on all ranks. False, with a warning and everything given back: one rank has none.
bool reserve_together(MemoryTier&, const State&, const Stream&, Communicator& host);

// The newest step that all ranks can load; nothing: none. Collective.
std::optional<std::int64_t> newest_common_step(const MemoryTier*, Communicator& host);

}  // namespace ring
