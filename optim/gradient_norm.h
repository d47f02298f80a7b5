#pragma once
// The norm of the whole gradient and its consequences for a step; and the norms of parts, for logging.

#include <vector>

#include "comm/communicator.h"
#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

class GradientNorm {
 public:
  // over: groups of ranks whose squared norms add up to that of the whole gradient. For parameters replicated over
  // tensor-parallel slices, only the first slice counts.
  GradientNorm(const OwnedShard&, std::vector<Communicator*> over);

  // Writes the squared norm, the clip factor and `accepted` to the StepState on the device, the same on every rank.
  // Collective. clip: the largest norm; 0 means no limit. A norm or a loss [1] that is not finite or above the state's
  // limits is remembered in the state until the state is reset, and rejects this and later steps.
  void decide_acceptance(const Tensor& step, double clip, const Tensor& loss, const ExecContext& ctx) const;

 private:
  std::vector<Tensor> counted_;  // gradients that this process squares and sums
  std::vector<Communicator*> over_;
};

// A range of the shard within one part of the model.
struct CountedRange {
  std::size_t part;
  UpdateRange range;
};
// Returns the ranges that this process counts, so that every parameter is counted once over all processes. counts:
// false on ranks whose gradients a different rank counts. parts: set to the embedding, each block, the final norm and
// the loss head, if they have parameters of their own.
std::vector<CountedRange> counted_ranges(const OwnedShard&, const Model&, bool counts, std::vector<ScopeId>& parts);

// Squared gradient norms of the model's parts (embedding, each block, final norm, loss head). A parameter used by
// several parts belongs to the first. Reads all gradients once more, so only logged steps call it.
class PartNorms {
 public:
  // counts: false on ranks whose gradients a different rank counts.
  PartNorms(const OwnedShard&, const Model&, bool counts, const ExecContext&);

  const std::vector<ScopeId>& parts() const { return parts_; }
  // Queues the sums of the ranges that this process counts, and returns them: [parts] f32. Summed over all ranks they
  // are the squared norms. Call after the gradients are complete and before the next step.
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
