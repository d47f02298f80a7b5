#pragma once
// The rule that computes new values from gradients: everything that an optimizer must define. Placement and ownership
// of its states are handled elsewhere (optim/optimizer.h). To add an optimizer, add a file beside adamw.cpp and a line
// in kinds.cpp (docs/extend.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/tensor.h"
#include "kernels/fp8_moments.h"
#include "kernels/kernel.h"
#include "model/params.h"
#include "optim/config.h"

namespace ring {

// An optimizer state with one value per element, initially 0. In checkpoints state "m" is saved as
// "optimizer.m.<parameter>".
struct StateKind {
  std::string name;
  DType type = DType::f32;  // u8 if the state has codes
  // If set, the state is stored as codes with scales (kernels/fp8_moments.h). In checkpoints the scales of state "m"
  // are "optimizer.m.<parameter>:e4m3_scales". A parameter with such a state must begin at a block boundary.
  std::optional<Fp8Moment> fp8 = std::nullopt;
};

// Returns a state of the type that optimizer.moments selects. fp8: its encoding if that type is MomentType::fp8.
StateKind moment_kind(std::string name, MomentType, Fp8Moment fp8);

// Elements that are updated in the same way: part of a parameter, or of several. Tensors are [n], contiguous and on the
// device.
struct ParameterUpdate {
  Tensor values, gradients;
  std::vector<Tensor> states;  // ordered like UpdateRule::states()
  std::vector<Tensor> scales;  // for each state: one scale per block, from element 0 on; undefined unless it is fp8
  Tensor weights;              // receives the new values, converted to its type; undefined if there is no copy
  Tensor step;                 // the StepState on the device
  float lr_scale = 1;          // factor on the StepState's learning rate
  float weight_decay = 0;      // 0 means no decay
  // Index of element 0 among all parameters, a multiple of 16. It determines the random bits for rounding, so that they
  // do not depend on the grouping into calls.
  std::int64_t first_element = 0;
};

// A logical matrix in this process: all of it, or its tensor-parallel slice. Elements are [rows, columns].
struct MatrixUpdate : ParameterUpdate {
  const Param* param = nullptr;
  std::int64_t rows = 0, columns = 0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<StateKind> states() const = 0;
  // Returns true if the rule updates the parameter; AdamW updates the others.
  virtual bool takes(const Param&) const { return true; }
  // Queues the update. Elements are independent: results must be bit-identical for every grouping of elements into
  // calls. If the step's `accepted` is 0, nothing may change.
  virtual void update(const ParameterUpdate&, const ExecContext&) const {
    RING_CHECK(is_matrix_rule(), "a rule must override update() or is_matrix_rule()");
  }

  // Rules that need whole matrices override the next three functions instead of update(). Results must be bit-identical
  // however matrices are grouped into calls. slices: the ranks that hold the other slices of these matrices, all of
  // which make the same call; null if matrices are not sliced. flops: FLOPs to update one matrix.
  virtual bool is_matrix_rule() const { return false; }
  virtual double flops(const Shape& /*whole*/) const { return 0; }
  virtual void update_matrices(const std::vector<MatrixUpdate>&, Communicator* /*slices*/, const ExecContext&) const {}
};

// Makes the rule of one kind of optimizer from the settings.
using OptimizerKind = std::function<std::unique_ptr<UpdateRule>(const OptimizerConfig&, std::uint64_t seed)>;

}  // namespace ring
