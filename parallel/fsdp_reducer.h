#pragma once
// Reduces gradients for ZeRO-2 and 3. Gradients exist for one unit at a time, in the unit's buffer: once the unit's
// backward of a micro-batch has run, they are reduced to their owners, who add them to their sums of this optimizer
// step. Meanwhile the next unit's backward runs in a different buffer.
//
// Reducer (ZeRO-0 and 1) shares only GradientSum with this class: it waits for single parameters of the last
// micro-batch and reduces each bucket in place, once per step. Units take turns in a few buffers in every micro-batch,
// so a common class would need the bookkeeping of both.

#include <optional>

#include "parallel/fsdp_units.h"
#include "parallel/gradient_sum.h"
#include "parallel/owned_shard.h"

namespace ring {

class FsdpReducer {
 public:
  // Binds every gradient to its slot in the buffers. own: this rank's gradient sums, overwritten in each step.
  FsdpReducer(Communicator&, const FsdpUnits&, const ExecContext&, DType gradients, const GradientTravel& travel,
              const FlatBuffer& own);

  void start_step();  // the next gradients of each unit overwrite `own`, later ones are added
  // Call before a unit's first gradient of a micro-batch; does nothing if the unit is open.
  void begin_unit(std::size_t unit, const ExecContext&);
  // Call after the unit's last gradient of a micro-batch; starts the reduction. Collective. Gradients that were not
  // written count as zero.
  void end_unit(std::size_t unit, const ExecContext&);
  void finish_step(const ExecContext&);  // completes the step; `own` then holds the sums

  std::size_t bytes() const;  // total bytes of the buffers

 private:
  struct Reduction {
    std::size_t unit;
    GradientSum sum;
  };
  void finish_reduction(std::size_t buffer, const ExecContext&);

  Communicator& comm_;
  const FsdpUnits& units_;
  GradientTravel travel_;
  FlatBuffer own_;
  std::vector<Tensor> buffers_;
  std::vector<std::optional<Reduction>> under_way_;  // reductions in flight, by buffer
  std::vector<bool> open_, added_;  // by unit; added_[u] is true if unit u is already summed into own_ in this step
};

}  // namespace ring
