#pragma once
// The update of what this process owns of the parameters: an UpdateRule over its shard, with states on the device or in
// host memory (optimizer.offload), from where they come chunk by chunk and go back.

#include <optional>
#include <string>
#include <vector>

#include "core/host_chunks.h"
#include "optim/update_rule.h"
#include "parallel/owned_shard.h"

namespace ring {

struct OptimizerState {
  std::string name;
  FlatBuffer buffer;  // on the device or on the host
};

class Optimizer {
 public:
  // The shard outlives it. OutOfMemory.
  Optimizer(const OptimizerConfig&, const OwnedShard&, std::uint64_t seed, const ExecContext&);

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
  std::vector<Tensor> on_host() const;
  void update_elements(std::int64_t first, std::int64_t n, const std::vector<Tensor>& here, const Tensor& step,
                       const ExecContext&) const;
  ParameterUpdate arguments(const UpdateRange&, std::int64_t first, const std::vector<Tensor>& here) const;

  const std::unique_ptr<UpdateRule> rule_;
  const OwnedShard& shard_;
  const std::vector<UpdateRange> ranges_;
  std::vector<OptimizerState> states_;
  const OptimizerConfig config_;
  bool values_travel_ = false;
  std::optional<HostChunks> chunks_;  // states on the host, and behind them values that travel, too
};

// Bytes of the states of one element.
std::uint64_t state_bytes(const OptimizerConfig&);
// Bytes of the device that states on the host take on their way, where a rank owns so many elements. copies: weights
// are a copy of the values in another type.
std::uint64_t staging_bytes(const OptimizerConfig&, std::int64_t elements, bool copies);

}  // namespace ring
