#pragma once
// The micro-batches of a step, or their slices, on one stage of a pipeline: runs the stage's schedule
// (parallel/pipeline/schedule.h) with the model's parts, and exchanges hidden states and their gradients with the other
// stages.

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "model/model.h"
#include "parallel/context/chunked_context.h"
#include "parallel/stages.h"

namespace ring {

class PipelineStep {
 public:
  // The tokens of one forward.
  struct Inputs {
    Tensor ids, targets;
    Sequences seqs;
  };
  struct Place {
    std::size_t micro = 0;  // micro-batch
    int slice = 0;          // its slice; 0 if there are none
  };
  // Callbacks of a training step, each for one micro-batch or slice.
  struct Source {
    std::function<std::int64_t(const Place&)> tokens;  // number of ids in inputs()
    std::function<Inputs(const Place&)> inputs;
    std::function<Run(const Place&, const Sequences&, Tape*)> run;
    std::function<ChunkedContext*(const Place&)> keys;  // stores the keys of earlier slices; null without slices
    // Called if the stage has the head, before each backward: a loss head adds gradients of its weights in its forward,
    // so that losses and gradients are summed in the same order.
    std::function<LossOutput(Run&, const Var& hidden, const Inputs&, const Place&)> loss;
  };

  // model: holds the parts of this stage. stages: the ranks with the other stages. All references must outlive the
  // object.
  PipelineStep(const Model& model, const ParallelPlan& plan, Communicator& stages, const ExecContext& ctx);

  // Queues the forwards and backwards of all micro-batches. Each gradient is summed in the order of the micro-batches,
  // from the last to the first slice of each. Only the tape of the last backward has final_pass(). Collective over the
  // stages.
  void compute(std::size_t micro_batches, const Source&);

 private:
  using Key = std::pair<int, int>;  // part and unit
  // A unit between its forward and its backward through a part.
  struct InFlight {
    explicit InFlight(bool final_pass) : tape(final_pass) {}
    Tape tape;
    Inputs in;
    std::optional<Run> run;  // set before the forward
    Var x;                   // the part's input; undefined in the first part
    Var hidden;              // output of the last part; undefined in other parts
    SlotPtr root;            // slot of the part's output, then of the loss; null if there is nothing to train
  };
  // A tensor that this stage expects, and the operation that receives it.
  struct Received {
    Tensor tensor;
    std::shared_ptr<Work> work;
  };
  using Inbox = std::map<Key, Received>;
  using Outbox = std::map<Key, Tensor>;

  void exchange(const StageStep&, const Source&);
  void forward(const PipelineAction&, const Source&);
  void backward(const PipelineAction&, const Source&);
  Tensor take(Inbox&, const Key&) const;
  Place place_of(const PipelineAction& a) const {
    return {static_cast<std::size_t>(a.unit / shape_.slices), a.unit % shape_.slices};
  }
  bool is_last(const PipelineAction& a) const { return static_cast<std::size_t>(a.part) + 1 == parts_.size(); }
  BlockRange part_of(const PipelineAction& a) const { return parts_.at(static_cast<std::size_t>(a.part)); }
  Inbox& inbox(PipelinePass pass) { return pass == PipelinePass::forward ? inputs_ : gradients_; }
  Outbox& outbox(PipelinePass pass) { return pass == PipelinePass::forward ? outputs_ : input_gradients_; }

  const Model& model_;
  const ParallelPlan& plan_;
  Communicator& stages_;
  const ExecContext& ctx_;
  const std::vector<BlockRange> parts_;  // parts of the whole model
  PipelineShape shape_;                  // of steps_
  std::vector<StageStep> steps_;
  std::map<Key, std::unique_ptr<InFlight>> in_flight_;
  Inbox inputs_, gradients_;          // keyed by the action that needs the tensor
  Outbox outputs_, input_gradients_;  // keyed by the action that needs the tensor
  std::deque<std::shared_ptr<Work>> sending_;
};

}  // namespace ring
