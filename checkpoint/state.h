#pragma once
// What a run is made of: every tensor and every counter that must survive a restart, by name. Each part of the trainer
// adds what it owns; saving takes a snapshot of the registry and loading fills it. A name that only one side knows is
// an error, so nothing can be forgotten without notice.
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

#include "core/tensor.h"

namespace ring {

// This rank's part of a tensor: the region [start, start + local.shape()) of the whole, in elements. Ranks that hold
// the same region hold the same values; one of them writes it. A rank that holds nothing of it adds an empty region, so
// that every rank knows every name.
struct StateTensor {
  std::string name;
  Shape global_shape;
  Shape start;
  Tensor local;  // contiguous, on any device; loading writes into its bytes
};

// Strings are UTF-8 text; other bytes belong in a u8 tensor.
using StateValue = std::variant<std::int64_t, std::uint64_t, double, std::string>;
using StateSlot = std::variant<std::int64_t*, std::uint64_t*, double*, std::string*>;

// Whose value is saved: one that all ranks must agree on (a cursor), or rank 0's of one that each measures (seconds).
enum class ValueOf { every_rank, rank_0 };

// Host memory for the snapshots of a run, one after the other: to take it and to lock its pages costs more than a copy.
struct SnapshotRoom {
  std::shared_ptr<void> memory;
  std::size_t bytes = 0;
};

// A copy of a State in host memory, which nothing changes any more: a checkpoint is written from it by any thread while
// the run goes on (State::live() makes one without a copy). It takes as much host memory as this rank's tensors,
// State::bytes(), page-locked where they are on a GPU, until it is destroyed, or as long as its SnapshotRoom lives.
class Snapshot {
 public:
  // Their local tensors are in host memory. On a GPU they may still be on their way: see copied() and wait().
  const std::map<std::string, StateTensor>& tensors() const { return tensors_; }
  const std::map<std::string, StateValue>& values() const { return values_; }
  bool must_agree(const std::string& name) const { return !of_rank_0_.contains(name); }
  const Event& copied() const { return copied_; }   // every copy is there
  void wait() const { copied_.synchronize(); }      // blocks the host until then
  const Stream& stream() const { return stream_; }  // for reading live tensors

 private:
  friend class State;
  Snapshot(std::set<std::string> of_rank_0, const Stream& stream) : of_rank_0_(std::move(of_rank_0)), stream_(stream) {}

  std::map<std::string, StateTensor> tensors_;
  std::map<std::string, StateValue> values_;
  std::set<std::string> of_rank_0_;
  Stream stream_;  // of the copies
  Event copied_;
};

// Tensors and values that are on one side of a load alone: their names.
struct TensorsApart {
  std::vector<std::string> missing;     // in the checkpoint
  std::vector<std::string> unexpected;  // that only the checkpoint has
};

// When tensors and values may be on one side of a load alone, and who hears of it. metadata: the checkpoint's.
struct MayDiffer {
  // Returns the names that a complete checkpoint with this metadata has. If the checkpoint lacks one of them, or has
  // others, loading throws Error.
  std::function<std::set<std::string>(const std::string& metadata)> saved;
  // Called with the names that are on one side alone, if there are any, after everything else was loaded.
  std::function<void(const TensorsApart&, const std::string& metadata)> told;
};

class State {
 public:
  void add(const std::string& name, const Tensor& tensor);  // the same whole tensor on every rank
  void add(StateTensor tensor);                             // Error: name taken, region outside the whole, strided
  // The owner keeps *value alive as long as the registry.
  void add(const std::string& name, StateSlot value, ValueOf whose = ValueOf::every_rank);

  // What has this prefix need not be on both sides when the state is loaded: what the checkpoint lacks stays as it is.
  void may_differ(const std::string& prefix, MayDiffer how) { may_differ_[prefix] = std::move(how); }
  const std::map<std::string, MayDiffer>& may_differ() const { return may_differ_; }

  // Tensors that other streams may still be writing when the stream of the work on them is done (optimizer.offload):
  // `settle` makes a stream wait for those.
  void written_behind(std::function<void(const Stream&)> settle) { settle_ = std::move(settle); }
  // What is queued on `stream` from now on sees the tensors as the work queued so far leaves them, or may write them.
  // Whoever takes snapshots or loads is behind it already.
  void settle(const Stream& stream) const {
    if (settle_) settle_(stream);
  }

  const std::map<std::string, StateTensor>& tensors() const { return tensors_; }
  const std::map<std::string, StateSlot>& values() const { return values_; }
  bool must_agree(const std::string& name) const { return !of_rank_0_.contains(name); }
  std::uint64_t bytes() const;           // of all local tensors
  std::uint64_t snapshot_bytes() const;  // that a SnapshotRoom needs for them

  // The tensors as the work queued on `stream` leaves them, and the values as they are now. On a GPU the copies run on
  // a stream of their own, and the host does not wait for them: whatever changes the tensors from now on must come
  // after copied(). `room`: its memory is used if it suffices and no snapshot holds it, and replaced otherwise. Error:
  // there is not enough host memory.
  Snapshot snapshot(const Stream& stream, SnapshotRoom* room = nullptr) const;
  // Takes that memory ahead, whose pages are touched and locked in the background. Error: OutOfHostMemory.
  void reserve(const Stream& stream, SnapshotRoom& room) const;
  // The same without a copy: its tensors are the live ones, on their device, and nothing may change them while it is
  // read. Waits for the work queued on `stream`.
  Snapshot live(const Stream& stream) const;

 private:
  void claim(const std::string& name) const;

  std::map<std::string, StateTensor> tensors_;
  std::map<std::string, StateSlot> values_;
  std::set<std::string> of_rank_0_;
  std::map<std::string, MayDiffer> may_differ_;
  std::function<void(const Stream&)> settle_;  // null: nobody else writes
};

StateValue read_slot(const StateSlot&);

}  // namespace ring
