#pragma once
// Data parallelism with ZeRO 0 to 3 (Rajbhandari et al. 2020): where parameters, gradients and optimizer states are
// stored, and how they are exchanged between the ranks that share the data.
//
//   zero  weights     gradients   moments, master   gradients are reduced
//   0     all ranks   all ranks   all ranks         in buckets during the last micro-batch's backward, to all ranks
//   1     all ranks   all ranks   their owners      the same, to their owners
//   2     all ranks   owners      their owners      after each unit's backward, in every micro-batch
//   3     owners      owners      their owners      the same; weights are gathered unit by unit
//
// If weights are on the host (ParamTypes::on_host), zero 1 and 2 store and gather them as zero 3 does. With zero 0,
// each rank has all weights in its own host memory, and copies them to the device from there.
//
// A unit: the parameters of one part of the model, such as a block (parallel/fsdp_units.h).
//
// A step: start_step(); forward and backward for each micro-batch, the last with Tape(final_pass = true);
// finish_gradients(); an update of everything in shard(); on_weights_updated(). All ranks must run the same parts of
// the model in the same order. With one rank everything is as with zero = 0.

#include <functional>
#include <memory>

#include "parallel/config.h"
#include "parallel/fsdp_reducer.h"
#include "parallel/owned_shard.h"
#include "parallel/reducer.h"
#include "parallel/weights.h"

namespace ring {

class DataParallel final : public ScopeListener {
 public:
  // Allocates and fills the parameters of `model`, and follows the scopes of `ctx`; the model must run only in `ctx`.
  // comm: the ranks that share the data. compression: these ranks by node, used only with parallel.compress.
  // slices: the tensor-parallel group, whose ranks hold the other slices of the model and process the same data.
  DataParallel(Model& model, Communicator& comm, const CompressionRanks& compression, Communicator& slices,
               const ParallelConfig&, std::int64_t bucket_bytes, const ParamTypes&, std::uint64_t seed,
               const ExecContext&);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  void start_step();                 // call before the first micro-batch
  void finish_gradients();           // completes the gradients in shard(), the sums over all ranks; collective
  void on_weights_updated();         // call after the update, which changed the weights in shard(); collective
  void prepare_to_write_weights();   // call before writing master values in shard() other than by an update
  void on_master_weights_changed();  // call after master values in shard() were written by anything but an update

  // Call before the first update if weights are on the host (ParamTypes::on_host). wait: see WeightGather.
  // next_part: called when a part's backward starts, after the copies of the next part's weights were queued.
  void set_host_updates(WeightGather::WaitForUpdate wait, std::function<void()> next_part);

  // Returns null if gradients are not compressed.
  GradientCompressor* compressor() { return compressor_.get(); }
  const GradientCompressor* compressor() const { return compressor_.get(); }
  // Index of this rank among the ranks that share the data, and their number.
  int replica() const { return comm_.rank(); }
  int replicas() const { return comm_.size(); }

  const OwnedShard& shard() const { return shard_; }
  // Returns true if this rank updates only a part of the parameters: with several ranks and zero 1 or above.
  bool sharded() const { return zero_ > 0; }
  bool holds_all_weights() const { return !gather_; }    // true if the device has all weights
  double wait_seconds() const { return wait_seconds_; }  // time that the host waited for other ranks since start_step()
  std::size_t weight_bytes() const;  // bytes on this process's device; includes the master values if they are there
  // Returns the bytes of weights and values in host memory that updates do not copy: exact values of encoded weights
  // and, if weights are on the host, frozen weights.
  std::size_t host_weight_bytes() const;
  // Returns how many bytes of a part's weights this rank copies from the host before a pass over the part; 0 if its
  // weights are on the device.
  std::size_t uploaded_bytes(const ScopeId& part, ScopePass) const;
  std::size_t gradient_bytes() const;
  // Bytes of the buffers that parts of the model take turns in using (zero 2 and 3); included in weight_bytes() and
  // gradient_bytes().
  std::size_t weight_buffer_bytes() const { return source_ ? source_->bytes() : 0; }
  std::size_t gradient_buffer_bytes() const { return unit_reducer_ ? unit_reducer_->bytes() : 0; }

  void enter(const ScopeId&, ScopePass) override;
  void after_backward(const ScopeId&) override;

 private:
  void allocate_sharded(const ParamTypes&, std::uint64_t seed);
  void make_gather();
  bool make_encoded(const ParamTypes&);
  void make_reducer(const ParallelConfig&, std::int64_t bucket_bytes, const ParamTypes&);
  void make_compressor(const ParallelConfig&, const CompressionRanks&);
  void make_pieces(Bucket&) const;

  const ExecContext& ctx_;
  Model& model_;
  Communicator& comm_;
  Communicator& slices_;
  int zero_;
  std::vector<ShardPiece> pieces_;  // pieces of all ranks; empty if not sharded()
  FsdpUnits units_;
  OwnedShard shard_;
  std::unique_ptr<GradientCompressor> compressor_;
  std::unique_ptr<Reducer> reducer_;           // used with zero 0 and 1
  std::unique_ptr<FsdpReducer> unit_reducer_;  // used with zero 2 and 3
  std::unique_ptr<EncodedWeights> encoded_;    // null if no weights are encoded
  std::unique_ptr<Communicator> alone_;        // zero 0: this rank, which gathers weights from its own host
  std::unique_ptr<WeightSource> source_;       // null with zero 0, unless weights are on the host
  bool stale_ = false;                         // true if source_ does not have the newest weights yet
  bool encoded_stale_ = false;                 // true if encoded_ is out of date
  double wait_seconds_ = 0;
  ScopeSubscription subscription_;
  WeightGather* gather_ = nullptr;   // source_ if that is a WeightGather, else null
  std::function<void()> next_part_;  // null unless weights are on the host
};

}  // namespace ring
