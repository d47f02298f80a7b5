#pragma once
// What makes new values of gradients: all that an optimizer has to say. Where its states live, and which rank has them,
// is not its business (optim/optimizer.h). A new one is a file beside adamw.cpp and a line in kinds.cpp
// (docs/extend.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "kernels/kernel.h"
#include "optim/config.h"

namespace ring {

// A value for each parameter that survives a restart: "m" is "optimizer.m.<parameter>" in a checkpoint. It starts at 0.
struct StateKind {
  std::string name;
  DType type = DType::f32;
};

// Elements that are updated alike: a part of a parameter, or of several. Tensors are [n], contiguous and on the device.
struct ParameterUpdate {
  Tensor values, gradients;
  std::vector<Tensor> states;      // in the order of UpdateRule::states()
  Tensor weights;                  // gets a copy of the new values in its type; undefined: there is none
  Tensor step;                     // the StepState on the device
  bool decay = false;              // weight decay applies
  std::int64_t first_element = 0;  // number of element 0 among all parameters, a multiple of 16: for random bits
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<StateKind> states() const = 0;
  // Queues the update. Each element by itself: which ones come in a call, and in how many, changes no bit. Where the
  // step's `accepted` is 0 nothing may change.
  virtual void update(const ParameterUpdate&, const ExecContext&) const = 0;
};

using OptimizerKind = std::function<std::unique_ptr<UpdateRule>(const OptimizerConfig&, std::uint64_t seed)>;

}  // namespace ring
