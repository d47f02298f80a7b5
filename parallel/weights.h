#pragma once
// Distribution of weights from their owners to the ranks that compute with them.

#include <functional>
#include <map>
#include <optional>

#include "model/weight_encoding.h"
#include "parallel/encoded_weights.h"
#include "parallel/fsdp_units.h"
#include "parallel/owned_shard.h"

namespace ring {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual void on_owners_updated(const ExecContext&) = 0;  // call after the owners' weights changed; collective
  // Call before a part of the model runs: makes the stream wait for the part's parameters. Collective.
  virtual void need(std::size_t part, ScopePass, const ExecContext&) = 0;
  // Makes the stream wait until all transfers that read the owners' weights have ended. Call before anything but an
  // update writes the owners' weights.
  virtual void wait_for_reads(const ExecContext&) = 0;
  virtual std::size_t bytes() const = 0;  // bytes of the buffers allocated in addition to the shard
};

// ZeRO-1 and 2: every rank has all weights. After each update the owners broadcast the new weights unit by unit, and
// the next forward waits for each unit at its first use. Does not send encoded weights, which updates do not change.
class WeightBroadcast final : public WeightSource {
 public:
  // flat_weights: all weights; the parameters' values are views of it.
  WeightBroadcast(Communicator&, const FsdpUnits&, const Tensor& flat_weights);
  void on_owners_updated(const ExecContext&) override;
  void need(std::size_t part, ScopePass, const ExecContext&) override;
  void wait_for_reads(const ExecContext&) override;
  std::size_t bytes() const override { return 0; }

 private:
  Communicator& comm_;
  const FsdpUnits& units_;
  Tensor flat_weights_;
  std::vector<std::optional<Work>> under_way_;  // broadcasts in flight, by unit
};

// Returns the bytes of each buffer of gathered weights (ZeRO-3), in the order of FsdpUnits::buffers.
std::vector<std::int64_t> weight_buffer_bytes(const FsdpUnits&, DType weights);

// ZeRO-3: only the owners store weights. A unit is gathered into its buffer before it is used, while the previous part
// computes, once in forward and once in backward. Weights whose format has an encoding (model/weight_encoding.h) are
// gathered encoded: their owners encode them instead of copying them into the buffer, or, if they are frozen, copy the
// encoded rows.
//
// If weights are in host memory (optimizer.offload: weights), their owners first copy them into the buffer, on a
// separate stream. Formats with an encoding are then not supported.
class WeightGather final : public WeightSource {
 public:
  // Binds every parameter's value to its slot in the buffers. slices: the tensor-parallel group. own: this rank's
  // weights. encoded: its frozen encoded weights; null if there are none.
  WeightGather(Communicator&, Communicator& slices, const FsdpUnits&, const ExecContext&, const FlatBuffer& own,
               const EncodedWeights* encoded);
  ~WeightGather() override;  // waits for copies that read host memory
  WeightGather(const WeightGather&) = delete;
  WeightGather& operator=(const WeightGather&) = delete;
  void on_owners_updated(const ExecContext&) override;
  void need(std::size_t part, ScopePass, const ExecContext&) override;
  void wait_for_reads(const ExecContext&) override;
  std::size_t bytes() const override;
  // For weights in host memory. wait: makes a stream wait until the last update has written a piece of this rank's
  // weights to the host. It is called before the first copy of each piece after an update.
  using WaitForUpdate = std::function<void(const Stream&, const ShardPiece&)>;
  void set_wait_for_update(WaitForUpdate wait) { wait_for_update_ = std::move(wait); }

 private:
  struct WeightBuffer {
    Tensor tensor;
    std::optional<std::size_t> unit;  // unit whose weights are in the buffer or in flight to it
    std::optional<Work> under_way;
  };
  struct Slot {
    Tensor bytes;  // u8, in the buffer of the parameter's unit
    Tensor max;    // f32 [1], the maximum of the whole weight; undefined unless WeightEncoding::needs_max()
  };
  void place(Param&, const Tensor& bytes);
  void find_maxima(const ExecContext&);
  void gather(std::size_t part, ScopePass, const ExecContext&);
  void write(const ShardPiece&, const ExecContext&) const;
  void upload(std::size_t unit, const ExecContext&);
  std::vector<EncodedRange> ranges_of(const ShardPiece&) const;
  WeightRows rows_of_piece(const ShardPiece& p) const { return {*p.param, p.first_row, own_.of(p).view({p.rows, -1})}; }

  Communicator& comm_;
  Communicator& slices_;
  const FsdpUnits& units_;
  FlatBuffer own_;
  const EncodedWeights* encoded_;
  std::vector<WeightBuffer> buffers_;
  std::map<const Param*, Slot> slots_;
  Tensor maxima_;  // f32, one per weight with a maximum; undefined if there are none
  // Used only if the weights are in host memory.
  std::optional<Stream> uploads_;
  std::vector<bool> uploaded_;  // [unit]: true if the unit was copied since the last update
  WaitForUpdate wait_for_update_;
};

}  // namespace ring
