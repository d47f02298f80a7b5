#pragma once
// The micro-batches of a step on one stage of a pipeline: runs the stage's schedule (parallel/pipeline/schedule.h) with
// the model's parts, and exchanges hidden states and their gradients with the other stages.

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
#include "parallel/stages.h"

namespace ring {

class PipelineStep {
 public:
  struct Inputs {
    Tensor ids;
    Sequences seqs;
  };
  // Callbacks of a training step, each for one micro-batch.
  struct Source {
    std::function<Inputs(std::size_t micro)> inputs;
    std::function<Run(std::size_t micro, const Sequences&, Tape*)> run;
    std::function<LossOutput(Run&, const Var& hidden, std::size_t micro)> loss;  // called if the stage has the head
  };

  // model: holds the parts of this stage. stages: the ranks with the other stages. All references must outlive the
  // object.
  PipelineStep(const Model& model, const ParallelPlan& plan, Communicator& stages, const ExecContext& ctx);

  // Queues the forwards and backwards of all micro-batches. Each gradient is summed in the order of the micro-batches.
  // Only the tape of the last micro-batch has final_pass(). Collective over the stages.
  void compute(std::size_t micro_batches, const Source&);

 private:
  using Key = std::pair<int, int>;  // part and micro-batch
  // A micro-batch between its forward and its backward through a part.
  struct InFlight {
    explicit InFlight(bool final_pass) : tape(final_pass) {}
    Tape tape;
    Inputs in;
    std::optional<Run> run;  // set before the forward
    Var x;                   // the part's input; undefined in the first part
    SlotPtr root;            // slot of the part's output, or of the loss; null if there is nothing to train
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
  void backward(const PipelineAction&);
  Tensor take(Inbox&, const Key&) const;
  BlockRange part_of(const PipelineAction& a) const { return parts_.at(static_cast<std::size_t>(a.part)); }
  Inbox& inbox(PipelinePass pass) { return pass == PipelinePass::forward ? inputs_ : gradients_; }
  Outbox& outbox(PipelinePass pass) { return pass == PipelinePass::forward ? outputs_ : input_gradients_; }

  const Model& model_;
  const ParallelPlan& plan_;
  Communicator& stages_;
  const ExecContext& ctx_;
  const std::vector<BlockRange> parts_;  // parts of the whole model
  std::vector<StageStep> steps_;
  std::size_t micro_batches_ = 0;  // number of micro-batches of steps_
  std::map<Key, std::unique_ptr<InFlight>> in_flight_;
  Inbox inputs_, gradients_;          // keyed by the action that needs the tensor
  Outbox outputs_, input_gradients_;  // keyed by the action that needs the tensor
  std::deque<std::shared_ptr<Work>> sending_;
};

}  // namespace ring
