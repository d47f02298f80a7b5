#pragma once
// What makes new weights of gradients, over what this process owns of the parameters. A new kind is a file beside
// adamw.cpp and a line in kinds.cpp (docs/extend.md).

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "optim/config.h"
#include "parallel/owned_shard.h"

namespace ring {

// A buffer that survives a restart: "m" is "optimizer.m.<parameter>" in a checkpoint.
struct OptimizerState {
  std::string name;
  FlatBuffer buffer;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Queues the update of the shard's values, and of their copies. step: the StepState on the device, with learning
  // rate and clip factor; where its `accepted` is 0 nothing may be written.
  virtual void update(const Tensor& step, const ExecContext&) = 0;
  virtual std::vector<OptimizerState> states() const = 0;
};

struct OptimizerKind {
  // The shard outlives the optimizer.
  std::function<std::unique_ptr<Optimizer>(const OptimizerConfig&, const OwnedShard&, std::uint64_t seed,
                                           const ExecContext&)>
      make;
  // Bytes that states() will hold for each element of the shard.
  std::function<std::uint64_t(const OptimizerConfig&)> state_bytes;
};

}  // namespace ring
