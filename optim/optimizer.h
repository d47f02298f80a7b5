#pragma once
// The update of what this process owns of the parameters: one UpdateRule or several over its shard, each in a lane of
// its own (optim/lane.h), with states on the device or in host memory (optimizer.offload), from where they come chunk
// by chunk and go back.

#include <optional>
#include <string>
#include <vector>

#include "optim/lane.h"

namespace ring {

struct OptimizerState {
  std::string name;
  std::string kind;                // of the parameters that have it
  std::vector<ShardPiece> pieces;  // of them that this process owns, with their places in the buffer
  FlatBuffer buffer;               // on the device or on the host
};

class Optimizer {
 public:
  // The shard outlives it, and so do the ranks that hold the other slices of the model (null: none). OutOfMemory.
  Optimizer(const OptimizerConfig&, const OwnedShard&, std::uint64_t seed, const ExecContext&,
            Communicator* slices = nullptr);

  // With states on the host the first of them are on their way while the step computes.
  void begin_step();
  // Queues the update of the shard's values, and of their copies. step: the StepState on the device, with learning rate
  // and clip factor; where its `accepted` is 0 nothing changes.
  void update(const Tensor& step, const ExecContext&);

  // States, and values that live on the host, may still be leaving the device when the compute stream is done with the
  // update: whoever reads or writes them does so on a stream behind settle().
  void settle(const Stream& stream) const;
  // Before steps are recorded, or a recorded one is replayed.
  void join();
  // What states on the host may take of the device on their way (optimizer.offload_staging_bytes), from now on. Blocks
  // the host. OutOfMemory.
  void set_staging(std::int64_t bytes, const ExecContext&);

  const std::vector<OptimizerState>& states() const { return states_; }
  std::size_t state_bytes() const;   // of the states, wherever they are
  std::size_t device_bytes() const;  // that they take of the device
  std::size_t host_bytes() const;    // of states, and of values, in host memory

 private:
  // A lane with its states, in the order of its rule's.
  struct Moving {
    Lane lane;
    std::vector<Tensor> states;
    std::unique_ptr<HostChunks> chunks;  // states on the host, and behind them values that travel, too
  };
  void add(Lane, const ExecContext&);
  std::vector<HostChunks::Pieces> on_host(const Moving&) const;
  void update_elements(const Moving&, std::int64_t first, std::int64_t n, const std::vector<Tensor>& here,
                       const Tensor& step, const ExecContext&) const;
  void update_matrices(const Moving&, std::int64_t first, std::int64_t n, const std::vector<Tensor>& here,
                       const Tensor& step, const ExecContext&) const;
  ParameterUpdate arguments(const LaneRange&, const LaneStretch&, std::int64_t first, const std::vector<Tensor>& here,
                            const Tensor& step) const;

  const OwnedShard& shard_;
  Communicator* const slices_;
  const OptimizerConfig config_;
  const bool values_travel_;
  std::vector<Moving> lanes_;
  std::vector<OptimizerState> states_;
};

// Bytes of the states of what a process owns.
std::uint64_t state_bytes(const OptimizerConfig&, const OwnedShard&);
// Bytes of the device that states on the host take on their way. copies: weights are a copy of the values in another
// type.
std::uint64_t staging_bytes(const OptimizerConfig&, const OwnedShard&, bool copies);

}  // namespace ring
