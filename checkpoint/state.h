#pragma once
// Registry of every tensor and counter that must survive a restart, by name. Each part of the trainer adds its own;
// saving takes a snapshot of the registry, and loading fills it. A name that exists on only one side is an error, so
// that nothing is silently forgotten.
//
// Names are dotted ("model.layers.0.wq", "optimizer.wq.m", "data.cursor"): letters, digits and . _ - : only.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/region.h"
#include "core/tensor.h"

namespace ring {

// This rank's part of a tensor: the region [start, start + local.shape()) of the whole tensor, in elements. Ranks that
// hold the same region hold the same values; one of them writes the region. A rank that holds nothing of a tensor adds
// an empty region, so that every rank knows every name.
struct StateTensor {
  std::string name;
  Shape global_shape;
  Shape start;
  Tensor local;  // contiguous, on any device; loading writes into its bytes
};

// Strings are UTF-8 text; other bytes belong in a u8 tensor.
using StateValue = std::variant<std::int64_t, std::uint64_t, double, std::string>;
using StateSlot = std::variant<std::int64_t*, std::uint64_t*, double*, std::string*>;

// Ranks that provide a saved value. replicated: every rank, with equal values (a cursor). rank0: only rank 0, because
// each rank measures its own value (seconds).
enum class StateScope { replicated, rank0 };

// Host memory that the snapshots of a run reuse one after another: allocating and page-locking memory costs more than a
// copy.
struct SnapshotRoom {
  std::shared_ptr<void> memory;
  std::size_t bytes = 0;
};

// An immutable copy of a State in host memory: any thread can write a checkpoint from it while training continues.
// (State::live_snapshot() makes a Snapshot without copying.) It occupies State::snapshot_bytes() of host memory,
// page-locked if the tensors are on a GPU, until both the snapshot and its SnapshotRoom are destroyed.
class Snapshot {
 public:
  // The local tensors are in host memory. Copies from a GPU may still be running: see copied() and wait().
  const std::map<std::string, StateTensor>& tensors() const { return tensors_; }
  const std::map<std::string, StateValue>& values() const { return values_; }
  bool must_agree(const std::string& name) const { return !of_rank_0_.contains(name); }
  const Event& copied() const { return copied_; }   // event at which all copies are complete
  void wait() const { copied_.synchronize(); }      // blocks the host until copied()
  const Stream& stream() const { return stream_; }  // stream on which live tensors are read

 private:
  friend class State;
  Snapshot(std::set<std::string> of_rank_0, const Stream& stream) : of_rank_0_(std::move(of_rank_0)), stream_(stream) {}

  std::map<std::string, StateTensor> tensors_;
  std::map<std::string, StateValue> values_;
  std::set<std::string> of_rank_0_;
  Stream stream_;  // stream on which the copies run
  Event copied_;
};

// Names of tensors and values that exist on only one side of a load.
struct KeyMismatch {
  std::vector<std::string> missing;     // missing in the checkpoint
  std::vector<std::string> unexpected;  // exist only in the checkpoint
};

using ReadRegion = std::function<Tensor(const Region&)>;

// Decides which tensors and values may exist only in the checkpoint or only in the State, and who is notified of them.
// `metadata` is the checkpoint's.
struct PartialLoadPolicy {
  // Returns the names that a complete checkpoint with this metadata has. Loading throws Error if the checkpoint lacks
  // one of them or has additional ones. If null, all differences are allowed.
  std::function<std::set<std::string>(const std::string& metadata)> saved;
  // Called after everything else was loaded, if there are names that exist on only one side.
  std::function<void(const KeyMismatch&, const std::string& metadata)> on_mismatch;
  // May be null. Called before on_mismatch for each tensor that only the checkpoint has; `read` returns a region of
  // this tensor, in host memory.
  std::function<void(const std::string& name, const ReadRegion& read)> on_unexpected = {};
};

class State {
 public:
  void add(const std::string& name, const Tensor& tensor);  // adds a whole tensor, the same on every rank
  // Throws Error if the name is taken, the region is outside the tensor, or `local` is strided.
  void add(StateTensor tensor);
  // *value must outlive the State.
  void add(const std::string& name, StateSlot value, StateScope scope = StateScope::replicated);

  // Allows names with this prefix to exist on only one side of a load. A tensor or value that the checkpoint lacks
  // keeps its contents.
  void allow_partial_load(const std::string& prefix, PartialLoadPolicy how) {
    partial_load_policies_[prefix] = std::move(how);
  }
  const std::map<std::string, PartialLoadPolicy>& partial_load_policies() const { return partial_load_policies_; }

  // Registers `wait_for_writes` for tensors that other streams may still be writing when the compute stream has
  // finished (optimizer.offload). `wait_for_writes` makes its argument wait for these writes.
  void set_wait_for_writes(std::function<void(const Stream&)> wait_for_writes) {
    wait_for_writes_ = std::move(wait_for_writes);
  }
  // Makes work queued on `stream` from now on wait until all tensors are written, so that it may read or overwrite
  // them. snapshot() and loading already do this.
  void wait_for_writes(const Stream& stream) const {
    if (wait_for_writes_) wait_for_writes_(stream);
  }

  const std::map<std::string, StateTensor>& tensors() const { return tensors_; }
  const std::map<std::string, StateSlot>& values() const { return values_; }
  bool must_agree(const std::string& name) const { return !of_rank_0_.contains(name); }
  std::uint64_t bytes() const;           // total size of the local tensors
  std::uint64_t snapshot_bytes() const;  // size of the SnapshotRoom that a snapshot needs

  // Copies the tensors as the work queued on `stream` leaves them, and the values as they are now. On a GPU the copies
  // run on a separate stream and the host does not wait for them: nothing may change the tensors before copied(). Uses
  // the memory of `room` if it is large enough and no snapshot uses it, else replaces it. Throws OutOfMemory if there
  // is not enough host memory.
  Snapshot snapshot(const Stream& stream, SnapshotRoom* room = nullptr) const;
  // Allocates the memory for snapshot() in advance; the memory's pages are touched and locked in the background. Throws
  // OutOfHostMemory.
  void reserve(const Stream& stream, SnapshotRoom& room) const;
  // Returns a snapshot without copying: its tensors are the live tensors, on their device, and nothing may change them
  // while the snapshot is read. Waits for the work queued on `stream`.
  Snapshot live_snapshot(const Stream& stream) const;

 private:
  void reject_duplicate(const std::string& name) const;

  std::map<std::string, StateTensor> tensors_;
  std::map<std::string, StateSlot> values_;
  std::set<std::string> of_rank_0_;
  std::map<std::string, PartialLoadPolicy> partial_load_policies_;
  std::function<void(const Stream&)> wait_for_writes_;  // null if no other stream writes
};

StateValue read_slot(const StateSlot&);

}  // namespace ring
