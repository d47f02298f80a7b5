#pragma once
// The norm of the whole gradient, which decides whether a step is accepted, and the norms of parts, for logging.

#include <vector>

#include "comm/communicator.h"
#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

class GradientNorm {
 public:
  // over: the rank groups over which squared norms are summed to get the squared norm of the whole gradient. Parameters
  // that are replicated over tensor-parallel slices are counted only on the first slice.
  GradientNorm(const OwnedShard&, std::vector<Communicator*> over);

  // Writes the squared norm, the clip factor and `accepted` to the StepState on the device, the same on every rank.
  // Collective. clip: maximum norm; 0 means no limit. If the norm or the loss [1] is not finite or exceeds a limit of
  // the state, the state remembers this until it is reset, and this step and later ones are rejected. The same applies
  // if *peer_lost is not 0 when the device decides (kernels/optimizer.h); peer_lost may be null.
  void decide_acceptance(const Tensor& step, double clip, const Tensor& loss, const std::uint32_t* peer_lost,
                         const ExecContext& ctx) const;

 private:
  std::vector<Tensor> counted_;  // gradients that this process adds to the norm
  std::vector<Communicator*> over_;
};

// A range of the shard that belongs to one part of the model.
struct CountedRange {
  std::size_t part;
  UpdateRange range;
};
struct CountedRanges {
  std::vector<ScopeId> parts;  // embedding, each block, final norm, loss head; without parts that have no parameters
  std::vector<CountedRange> ranges;
};
// Returns the ranges whose norms this process computes. Over all processes every parameter is in exactly one of them.
// counted_here: false if a different rank counts the same gradients.
CountedRanges counted_ranges(const OwnedShard&, const Model&, bool counted_here);

// Squared gradient norms of the model's parts (embedding, each block, final norm, loss head). A parameter used by
// several parts belongs to the first of them. Reads all gradients once more, so it is only called in logged steps.
class PartNorms {
 public:
  // counted_here: false if a different rank counts the same gradients.
  PartNorms(const OwnedShard&, const Model&, bool counted_here, const ExecContext&);

  const std::vector<ScopeId>& parts() const { return parts_; }
  // Queues the sums of squares over the ranges that this process counts. Returns them, f32 [parts]; added up over all
  // ranks they are the squared norms. Call after the gradients are complete and before the next step.
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
