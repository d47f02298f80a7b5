#pragma once
// Reduces gradients for ZeRO-2 and 3. Gradients exist one unit at a time, in the unit's buffer: once the unit's
// backward of a micro-batch has run, they are reduced to their owners, who add them to their sums of this optimizer
// step. The next unit's backward runs meanwhile, in a different buffer.
//
// Shares only GradientSum with Reducer: Reducer waits for single parameters of the last micro-batch and reduces each
// bucket in place, once per step, while units take turns in a few buffers in every micro-batch. One class for both
// would carry the bookkeeping of each beside that of the other.

#include <optional>

#include "parallel/fsdp_units.h"
#include "parallel/gradient_sum.h"
#include "parallel/owned_shard.h"

namespace ring {

class FsdpReducer {
 public:
  // Binds every gradient to its slot in the buffers. own: this rank's gradients, overwritten by each step.
  FsdpReducer(Communicator&, const FsdpUnits&, const ExecContext&, DType gradients, DType travel,
              const FlatBuffer& own);

  void start_step();  // the next gradients of each unit overwrite `own`, later ones add
  // Call before a unit's first gradient of a micro-batch; does nothing if the unit is open.
  void begin_unit(std::size_t unit, const ExecContext&);
  // Call after the unit's last gradient of a micro-batch; starts the reduction. Collective. Gradients that nothing
  // wrote count as zero.
  void end_unit(std::size_t unit, const ExecContext&);
  void finish(const ExecContext&);  // ends the step; then `own` holds the sums

  std::size_t bytes() const;  // bytes of the buffers

 private:
  struct Reduction {
    std::size_t unit;
    GradientSum sum;
  };
  void finish_reduction(std::size_t buffer, const ExecContext&);

  Communicator& comm_;
  const FsdpUnits& units_;
  DType travel_;
  FlatBuffer own_;
  std::vector<Tensor> buffers_;
  std::vector<std::optional<Reduction>> under_way_;  // by buffer
  std::vector<bool> open_, added_;                   // by unit; added_: already summed into own_ in this step
};

}  // namespace ring
