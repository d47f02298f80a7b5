#pragma once
// Gradients of ZeRO-2 and 3. They exist one unit at a time, in the unit's buffer: as soon as the unit's backward of a
// micro-batch has run, they are summed to their owners, who add them to what they have of this optimizer step. The next
// unit's backward runs meanwhile, in another buffer.
//
// It shares GradientSum with Reducer, and nothing more: Reducer waits for the single parameters of the last micro-batch
// and sums each bucket in place, once per step, while units take turns in a few buffers in every micro-batch. One class
// for both would hold either's bookkeeping beside the other's.

#include <optional>

#include "parallel/fsdp_units.h"
#include "parallel/gradient_sum.h"
#include "parallel/owned_shard.h"

namespace ring {

class FsdpReducer {
 public:
  // Binds every gradient to its place. own: this rank's gradients, filled by each step.
  FsdpReducer(Communicator&, const FsdpUnits&, const ExecContext&, DType gradients, DType travel,
              const FlatBuffer& own);

  void start_step();
  // Before a unit's first gradient of a micro-batch; does nothing for a unit that is open.
  void open(std::size_t unit, const ExecContext&);
  // After its last one. Gradients that nothing wrote are zero.
  void close(std::size_t unit, const ExecContext&);
  void finish(const ExecContext&);  // of the step: `own` holds the sums

  std::size_t bytes() const;  // of the buffers

 private:
  struct Reduction {
    std::size_t unit;
    GradientSum sum;
  };
  void settle(std::size_t buffer, const ExecContext&);

  Communicator& comm_;
  const FsdpUnits& units_;
  DType travel_;
  FlatBuffer own_;
  std::vector<Tensor> buffers_;
  std::vector<std::optional<Reduction>> under_way_;  // by buffer
  std::vector<bool> open_, added_;                   // by unit; added_: in this step
};

}  // namespace ring
