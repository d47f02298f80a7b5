#pragma once
// The norm of the whole gradient, and what follows from it for a step; the norms of its parts, for those who watch.

#include <vector>

#include "comm/communicator.h"
#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

class GradientNorm {
 public:
  // over: groups of ranks whose squares add up to the norm of the whole gradient. Of parameters that every slice of the
  // model holds, the first slice's count.
  GradientNorm(const OwnedShard&, std::vector<Communicator*> over);

  // Squared norm, clip factor and `accepted` into the StepState on the device, the same on every rank. clip: the
  // largest norm; 0: any. A norm or a loss [1] that is not finite or above the state's limits, in this step or in an
  // earlier one since the state was last reset, is remembered there.
  void judge(const Tensor& step, double clip, const Tensor& loss, const ExecContext& ctx) const;

 private:
  std::vector<Tensor> counted_;  // gradients whose squares this process adds
  std::vector<Communicator*> over_;
};

// A part of the shard that lies in one part of the model.
struct CountedRange {
  std::size_t part;
  UpdateRange range;
};
// What this process counts, so that all processes count every parameter once; counts: false on ranks of which another
// one has the same. parts: becomes embedding, each block, final norm, loss head, as far as they have parameters of
// their own.
std::vector<CountedRange> counted_ranges(const OwnedShard&, const Model&, bool counts, std::vector<ScopeId>& parts);

// Squared norms of the gradients of the model's parts (embedding, each block, final norm, loss head); a parameter that
// several parts use belongs to the first. They read all gradients once more, so only steps that are logged pay.
class PartNorms {
 public:
  // counts: false on ranks of which another one has the same gradients.
  PartNorms(const OwnedShard&, const Model&, bool counts, const ExecContext&);

  const std::vector<ScopeId>& parts() const { return parts_; }
  // Queues the sums over what this process counts: [parts] f32. Over all ranks they add up to the squared norms. After
  // the gradients are complete, before the next step.
  const Tensor& measure(const ExecContext&) const;

 private:
  struct Counted {
    std::size_t part;
    Tensor gradients;
  };
  std::vector<ScopeId> parts_;
  std::vector<Counted> counted_;
  Tensor squares_;
};

}  // namespace ring
