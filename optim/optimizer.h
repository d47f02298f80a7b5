#pragma once
// Updates the parameters that this process owns: one or several UpdateRules over its shard, each in its own lane
// (optim/lane.h). States are on the device or, with optimizer.offload, in host memory, from where they are copied to
// the device and back in chunks.

#include <optional>
#include <string>
#include <vector>

#include "optim/lane.h"

namespace ring {

struct OptimizerState {
  std::string name;
  std::string kind;                // update kind of the parameters that have this state
  std::vector<ShardPiece> pieces;  // this process's pieces of these parameters, with their offsets in the buffer
  FlatBuffer buffer;               // on the device or on the host
  std::optional<Fp8Moment> fp8;    // form of the codes in the buffer
  Tensor scales;                   // of the buffer's blocks; undefined unless fp8 is set
};

class Optimizer {
 public:
  // slices: the ranks with the other tensor-parallel slices of the model; null if there are none. `slices` and the
  // shard must outlive the optimizer. Throws OutOfMemory.
  Optimizer(const OptimizerConfig&, const OwnedShard&, std::uint64_t seed, const ExecContext&,
            Communicator* slices = nullptr);

  // If states are kept on the host, starts copying the first of them while the step computes: as many as fit into the
  // staging memory or, if weights are on the host, too, one chunk now and one at each prefetch_next().
  void begin_step();
  void prefetch_next();  // does nothing outside of a step
  // Queues the update of the shard's values and their copies. Collective over `slices`. step: the StepState on the
  // device, with learning rate and clip factor; if its `accepted` is 0, nothing changes.
  void update(const Tensor& step, const ExecContext&);

  // Makes `stream` wait until states and values on the host are complete: copies from the device may still be running
  // when the compute stream has finished the update. Call before reading or writing them on that stream.
  void wait_for_copies(const Stream& stream) const;
  // Like the overload above, but only for the states, values and weights of one piece of the shard.
  void wait_for_copies(const Stream& stream, const ShardPiece&) const;
  // Makes the compute stream wait for all copies between host and device. Call before a step is captured into a graph,
  // and before the graph is replayed.
  void join_copies();
  // Sets the device memory for states in transit to and from the host (optimizer.offload_staging_bytes). Blocks the
  // host. Throws OutOfMemory.
  void set_staging(std::int64_t bytes, const ExecContext&);

  const std::vector<OptimizerState>& states() const { return states_; }
  std::size_t state_bytes() const;   // all states, on the device and the host
  std::size_t device_bytes() const;  // device memory of states
  std::size_t host_bytes() const;    // host memory of states and values

 private:
  // A lane with its states, ordered like UpdateRule::states(); an fp8 state is followed by its scales.
  struct LaneState {
    Lane lane;
    std::vector<Tensor> states;
    std::unique_ptr<HostChunks> chunks;  // on the host: states, then values and weights if offloaded
  };
  void add_lane(Lane, const ExecContext&);
  std::vector<HostChunks::Pieces> host_pieces(const LaneState&) const;
  void update_elements(const LaneState&, std::int64_t first, std::int64_t n, const std::vector<Tensor>& here,
                       const Tensor& step, const ExecContext&) const;
  void update_matrices(const LaneState&, std::int64_t first, std::int64_t n, const std::vector<Tensor>& here,
                       const Tensor& step, const ExecContext&) const;
  ParameterUpdate arguments(const LaneState&, const LaneRange&, const LaneSlice&, std::int64_t first,
                            const std::vector<Tensor>& here, const Tensor& step) const;

  const OwnedShard& shard_;
  Communicator* const slices_;
  const OptimizerConfig config_;
  const bool offloads_values_, offloads_weights_;  // offloads_weights_: separate from the values
  bool stepping_ = false;                          // between begin_step() and update()
  std::vector<LaneState> lanes_;
  std::vector<OptimizerState> states_;
};

// Returns the bytes of the optimizer states for a shard.
std::uint64_t state_bytes(const OptimizerConfig&, const OwnedShard&);
// Returns the device bytes for states, values and weights in transit to and from the host.
std::uint64_t staging_bytes(const OptimizerConfig&, const OwnedShard&, const ParamTypes&);

}  // namespace ring
