#pragma once
// What makes new values of gradients: all that an optimizer has to say. Where its states live, and which rank has them,
// is not its business (optim/optimizer.h). A new one is a file beside adamw.cpp and a line in kinds.cpp
// (docs/extend.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/tensor.h"
#include "kernels/kernel.h"
#include "model/params.h"
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
  float lr_scale = 1;              // on the StepState's learning rate
  float weight_decay = 0;          // 0: none
  std::int64_t first_element = 0;  // number of element 0 among all parameters, a multiple of 16: for random bits
};

// What this process holds of a logical matrix: all of it, or its slice where the model is cut. Its elements are
// [rows, columns].
struct MatrixUpdate : ParameterUpdate {
  const Param* param = nullptr;
  std::int64_t rows = 0, columns = 0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<StateKind> states() const = 0;
  // Whether it is meant for the parameter; AdamW updates the others.
  virtual bool takes(const Param&) const { return true; }
  // Queues the update. Each element by itself: which ones come in a call, and in how many, changes no bit. Where the
  // step's `accepted` is 0 nothing may change.
  virtual void update(const ParameterUpdate&, const ExecContext&) const {
    RING_CHECK(by_matrix(), "a rule of nothing");
  }

  // A rule that needs whole matrices overrides these instead: which matrices come in a call changes no bit. slices: the
  // ranks that hold the others, which call it with theirs; null: there are none. flops: of the update of one.
  virtual bool by_matrix() const { return false; }
  virtual double flops(const Shape& /*whole*/) const { return 0; }
  virtual void update_matrices(const std::vector<MatrixUpdate>&, Communicator* /*slices*/, const ExecContext&) const {}
};

using OptimizerKind = std::function<std::unique_ptr<UpdateRule>(const OptimizerConfig&, std::uint64_t seed)>;

}  // namespace ring
