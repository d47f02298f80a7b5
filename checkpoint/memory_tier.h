#pragma once
// Keeps this rank's newest snapshots in memory that the launcher holds (job/agent_memory.h). If a worker dies, only the
// steps since the last snapshot are lost, and no file has to be read.
//
// There are two slots, each an in-memory file: the bytes of all tensors, then a signed manifest of this rank's part
// with a hash of each tensor. A slot that is being written has no manifest until it is complete, so a slot left by a
// dead worker is either complete or ignored; the other slot holds the previous snapshot. Checkpoints are written from
// the same copies, so the tier needs one more copy of the state than checkpoints do.

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
#include "job/agent_memory.h"
#include "job/secret.h"

namespace ring {

class MemoryTier {
 public:
  // identity: hash of what must match for a snapshot to be used: settings, data, program, rank and number of ranks.
  // signing_key: signs the manifests, so that snapshots of other jobs are rejected.
  MemoryTier(const AgentMemoryFiles& files, std::string identity, std::string signing_key);

  // Returns the steps that can be loaded, sorted: those of snapshots that are complete, have this identity and match
  // their hashes. Warns about damaged snapshots.
  std::vector<std::int64_t> complete_steps() const;
  // Fills the State from the snapshot of `step`, and returns the snapshot's manifest. Throws Error if the snapshot is
  // gone or does not fit the State.
  Manifest load(std::int64_t step, State&, const Stream&);
  // Returns the time at which the loaded snapshot became valid (seal()).
  std::filesystem::file_time_type loaded_from() const { return loaded_from_; }

  // Allocates the memory for snapshots of `state` and page-locks it for the stream's device. Discards snapshots with a
  // different identity. Throws Error if there is not enough memory.
  void reserve(const State& state, const Stream& stream);
  // Call after reserve() if training continues without load(). Makes the next take_snapshot() keep the snapshot of
  // `step`.
  void keep(std::int64_t step);
  void clear();                 // frees the memory of both slots, with their snapshots
  std::uint64_t bytes() const;  // total host memory of both slots

  // Takes a snapshot into the slot with the older snapshot, which becomes invalid, but never into the slot that
  // protect_latest() protects. Requires reserve(). Otherwise like State::snapshot(). The snapshot becomes valid when
  // seal() returns. seal() may run on any thread, but must return before the next take_snapshot().
  Snapshot take_snapshot(const State&, const Stream&);
  void seal(const Snapshot&, std::int64_t step, const std::string& metadata);
  void protect_latest() { held_ = latest_; }  // protects the latest snapshot while a checkpoint is written from it
  void unprotect() { held_ = -1; }
  void invalidate();  // invalidates both snapshots, e.g. after the run was rewound

 private:
  struct Slot {
    int file = -1;
    std::shared_ptr<void> map;  // mapping of the whole file
    SnapshotRoom room;          // the part of the mapping after the header
  };

  std::optional<Manifest> read(const Slot&) const;
  std::string signature(const std::string& manifest) const { return hmac(key_, identity_ + "\n" + manifest); }
  void allocate(Slot&, std::uint64_t bytes, Device);

  std::array<Slot, 2> slots_;
  std::string identity_, key_;
  int latest_ = 0, held_ = -1;
  std::filesystem::file_time_type loaded_from_{};
};

// Opens the memory that the launcher keeps for this process; null if there is none. identity_facts: hashed into the
// identity.
std::unique_ptr<MemoryTier> open_memory_tier(const std::vector<std::string>& identity_facts);

// Reserves the tier's memory on all ranks. If one rank has too little memory, warns, frees the memory on all ranks and
// returns false. Collective.
bool reserve_on_all_ranks(MemoryTier&, const State&, const Stream&, Communicator& host);

// Returns the newest step that all ranks can load; nullopt if there is none. The tier may be null. Collective.
std::optional<std::int64_t> newest_common_step(const MemoryTier*, Communicator& host);

}  // namespace ring
