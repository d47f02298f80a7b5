#pragma once
// Gradients of ZeRO-2 and 3. They exist one unit at a time, in the unit's buffer: as soon as the unit's backward of a
// micro-batch has run, they are summed to their owners, who add them to what they have of this optimizer step. The next
// unit's backward runs meanwhile, in another buffer.

#include <optional>

#include "parallel/gradient_sum.h"
#include "parallel/holding.h"
#include "parallel/units.h"

namespace ring {

class UnitReducer {
 public:
  // Binds every gradient to its place. own: this rank's gradients, filled by each step.
  UnitReducer(Communicator&, const Units&, const Context&, DType gradients, DType travel, const HeldBuffer& own);

  void start_step();
  // Before a unit's first gradient of a micro-batch; does nothing for a unit that is open.
  void open(std::size_t unit, const Context&);
  // After its last one. Gradients that nothing wrote are zero.
  void close(std::size_t unit, const Context&);
  void finish(const Context&);  // of the step: `own` holds the sums

  std::size_t bytes() const;  // of the buffers

 private:
  struct Reduction {
    std::size_t unit;
    GradientSum sum;
  };
  void settle(std::size_t buffer, const Context&);

  Communicator& comm_;
  const Units& units_;
  DType travel_;
  HeldBuffer own_;
  std::vector<Tensor> buffers_;
  std::vector<std::optional<Reduction>> under_way_;  // by buffer
  std::vector<bool> open_, added_;                   // by unit; added_: in this step
};

}  // namespace ring
