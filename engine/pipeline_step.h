#pragma once
// Executes a training step on one pipeline stage: runs the micro-batches, or their slices, through the stage's parts of
// the model in the order of the schedule (parallel/pipeline/schedule.h), and exchanges hidden states and their
// gradients with the other stages.

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
  // Input tokens of one forward pass.
  struct Inputs {
    Tensor ids, targets;
    Sequences seqs;
    Tensor weights{};  // LossHead::weights
  };
  struct Place {
    std::size_t micro = 0;  // index of the micro-batch
    int slice = 0;          // index of the slice in the micro-batch; 0 without slices
  };
  // Callbacks of a training step. Each call handles one micro-batch or slice.
  struct Source {
    std::function<std::int64_t(const Place&)> tokens;  // number of tokens that inputs() returns
    std::function<Inputs(const Place&)> inputs;
    std::function<Run(const Place&, const Sequences&, Tape*)> run;
    std::function<ChunkedContext*(const Place&)> keys;  // store of earlier slices' keys; null without slices
    // Set only on the stage with the head. Called just before each backward, not in the forward, because the loss head
    // accumulates its weight gradients during its own forward. Sums thus have the same order as without a pipeline.
    std::function<LossOutput(Run&, const Var& hidden, const Inputs&, const Place&)> loss;
  };

  // model: holds the parts of this stage. stages: the ranks with the other stages. All references must outlive the
  // object.
  PipelineStep(const Model& model, const ParallelPlan& plan, Communicator& stages, const ExecContext& ctx);

  // Queues the forwards and backwards of all micro-batches. Gradients are summed in the order of the micro-batches and,
  // within a micro-batch, from the last slice to the first. Only the tape of the last backward has final_pass().
  // Collective over the stages.
  void compute(std::size_t micro_batches, const Source&);

 private:
  using Key = std::pair<int, int>;  // part of the model, and unit (PipelineAction)
  // A unit between its forward and its backward through a part.
  struct InFlight {
    explicit InFlight(bool final_pass) : tape(final_pass) {}
    Tape tape;
    Inputs in;
    std::optional<Run> run;  // set before the forward
    Var x;                   // the part's input; undefined in the first part
    Var hidden;              // output of the last part; undefined in other parts
    SlotPtr root;            // slot of the part's output, later of the loss; null if nothing is trained
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
  PipelineShape shape_;                  // shape for which steps_ was built
  std::vector<StageStep> steps_;
  std::map<Key, std::unique_ptr<InFlight>> in_flight_;
  Inbox inputs_, gradients_;          // keyed by the action that needs the tensor
  Outbox outputs_, input_gradients_;  // keyed by the action that needs the tensor
  std::deque<std::shared_ptr<Work>> sending_;
};

}  // namespace ring
