#pragma once
// The computation of one optimizer step: forward and backward of every micro-batch, gradient reduction over the ranks,
// gradient norm, update. Data, checkpoints and schedules are in trainer/trainer.h; engine/dry_step.h runs the same
// steps without computing.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/host_offload.h"
#include "comm/mesh/mesh.h"
#include "core/step_arena.h"
#include "engine/config.h"
#include "engine/input_stage.h"
#include "engine/pipeline_step.h"
#include "engine/step_losses.h"
#include "kernels/observers.h"
#include "model/model.h"
#include "model/training_state.h"
#include "optim/gradient_norm.h"
#include "optim/optimizer.h"
#include "optim/weight_average.h"
#include "parallel/parallelize.h"

namespace ring {

class TrainStep {
 public:
  // While this object lives, the stream allocates memory through this object's StepArena. Throws Error if the stream
  // already uses a StepArena. Throws OutOfMemory with advice.
  //   config     resolved settings (engine/resolve.h); must outlive this object
  //   host_room  bytes of host memory for activations that the plan offloads, and for keys of earlier chunks
  //   packed     true if samples hold several documents or sequences
  TrainStep(const Config& config, const ExecContext& ctx, Mesh& mesh, const ActivationPlan&, std::size_t host_room,
            bool packed);
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // Copies this rank's micro-batches to the device, on a separate stream.
  void load(const std::vector<Batch>& batches);
  // Queues everything from the inputs to the new weights. All values that differ between steps are read from device
  // memory, except the document boundaries of packed samples. Call within a StepScope of arena().
  void compute();
  // Call after compute() failed, if there is a single process: the next compute() starts from clean gradients.
  void abandon_step() {
    data().finish_gradients();
    if (ChunkedContext* chunked = parallel_.context.chunked()) chunked->clear();  // without stages there is only one
  }
  // Returns the number of updates of weights and moments that compute() has begun to queue. If compute() throws, the
  // last of them may be queued only in part.
  std::uint64_t updates_begun() const { return updates_begun_; }
  void set_activations(const ActivationPlan& plan);
  // Reserves the host memory that offloaded activations are predicted to use. Call before the first step. Throws
  // OutOfHostMemory.
  void reserve_host(std::size_t bytes) {
    if (offload_) offload_->reserve(bytes);
  }
  // Sets the bytes of device memory that buffer optimizer states in transit to and from host memory
  // (optimizer.offload_staging_bytes); 0 means the minimum. Call between steps. Throws OutOfMemory with advice.
  void set_staging(std::size_t bytes);
  // Sets the sequences per micro-batch, from the next load() on. Call between steps, with a single process. Must divide
  // the sequences of the step.
  void set_micro_batch(std::int64_t sequences);
  // Sets the sequences per step over all replicas, from the next load() on. Call between steps. Must not exceed the
  // run's maximum. Changes the memory of a step and makes a recording invalid.
  void set_batch_size(std::int64_t sequences);
  // Makes the next update wait for the event `copied`, because the training state is being copied until then. The rest
  // of the step does not wait.
  void keep_state_until(const Event& copied) { copied_ = copied; }
  bool waits_for_copies() const { return copied_.has_value(); }
  // Swaps the weights with their average (train.ema); the next call swaps them back. Call between steps, on all ranks.
  // With zero 1 and 2, a forward over the whole model, such as a validation, must have been queued since the last
  // update: until then new weights may still be in transit between the ranks.
  void swap_average_weights();

  // Returns the attention entropy of each layer over this rank's first micro-batch, in the format of Probes::entropies
  // (autograd/tape.h).
  // Collective; requires load(). Dropout is off.
  std::vector<Tensor> attention_entropies();

  // Returns the number of (query, key) pairs that this rank computes in an attention layer for its first micro-batch,
  // pools included; nullopt if the layer selects its blocks during the forward. Requires load().
  std::optional<double> attention_pairs(const AttentionLayer&) const;

  // Returns the parts of this step that the model's own training states use, such as block importances
  // (model/training_state.h).
  StepAccess make_step_access();

  // For preference.loss. Computes the scores of the answers in this rank's part of the micro-batches, which were passed
  // to load(): forwards without a tape, with the dropout of the next compute(). Returns one score for each
  // Batch::documents of each micro-batch; all are 0 if another pipeline stage has the loss head. Blocks until the
  // device is done. Collective. Requires the StepState of the next compute().
  std::vector<AnswerScore> score_answers(const std::vector<Batch>& batches);
  // For preference.loss. Sets the weight of each token of the micro-batches in the next compute(), and what this rank
  // adds to the step's losses.
  void set_pair_weights(const std::vector<float>& weights, const PairLoss& sums);

  // Returns the Run for a forward over micro-batch `index` of this rank, or over one of its chunks.
  // sequences: the sequences of the micro-batch or chunk.
  Run micro_run(std::size_t index, const Sequences& sequences, Tape*, int chunk = 0);

  // Reports every kernel of the following steps to `observer`; null disables this.
  void observe(std::shared_ptr<KernelObserver> observer) { ctx_.observer = std::move(observer); }

  const ExecContext& exec() const { return ctx_; }
  StepArena& arena() { return *arena_; }
  std::shared_ptr<StepArena> shared_arena() const { return arena_; }
  const ParallelPlan& plan() const { return plan_; }
  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  ContextBatches& cp_batches() { return parallel_.context; }
  DataParallel& data() { return *parallel_.data; }
  const DataParallel& data() const { return *parallel_.data; }
  Optimizer& optimizer() { return *optimizer_; }
  WeightAverage* average() { return average_.get(); }          // null if there is no average
  const PartNorms& part_norms() const { return part_norms_; }  // gradient norms of the model's parts
  // Returns null if the current plan offloads nothing.
  const HostOffload* offload() const { return plan_offloads_ ? offload_.get() : nullptr; }
  const Tensor& state() const { return step_state_; }   // a StepState on the device
  const StepLosses& losses() const { return losses_; }  // of the latest step, summed over all ranks
  // Returns the number of this rank's micro-batches in a step.
  std::size_t micro_batches() const { return static_cast<std::size_t>(micro_batches_); }
  // Returns e.g. "weights 1.50 GiB, gradients .., moments ..".
  std::string lasting_memory_text() const;

 private:
  Parallelized parallelized();
  std::unique_ptr<Optimizer> make_optimizer();
  std::unique_ptr<WeightAverage> make_average();
  std::vector<Communicator*> norm_groups();
  void allocate_inputs();
  void lay_out_sequences();
  void set_documents(std::size_t index, const Batch&);
  std::int64_t micro_tokens() const { return plan_.micro_batch * parallel_.context.tokens(); }
  using ForwardInputs = PipelineStep::Inputs;  // input tokens of a micro-batch or of a chunk
  Tensor micro_batch_part(const Tensor& all, std::size_t index) const;
  ForwardInputs inputs_of(std::size_t index) const;
  ForwardInputs inputs_of_chunk(std::size_t index, int chunk) const;
  void forward(std::vector<Tensor>* entropies);
  void micro_step(std::size_t index);
  void keep_keys(std::size_t index, int chunk);
  void limit_activations();
  void train_on(const ForwardInputs&, std::size_t index, int chunk = 0);
  void run_stages();
  LossHead loss_head(const ForwardInputs&) const;
  void add_loss(const LossOutput&, std::size_t index);
  void sum_losses();
  void update();

  const Config& config_;
  ExecContext ctx_;
  // First listener that is notified of a scope, so that work that the other listeners queue belongs to the scope.
  ObservedScopes observed_{ctx_};
  std::shared_ptr<StepArena> arena_;
  StepMemory step_memory_;
  ScopeSubscription arena_scopes_{ctx_.scopes, *arena_};
  Mesh& mesh_;
  bool packed_;
  const std::int64_t corpora_;
  ParallelPlan plan_;
  std::int64_t micro_batches_ = plan_.micro_batches;
  const std::size_t host_room_;
  std::unique_ptr<Model> model_;
  Parallelized parallel_;
  std::unique_ptr<PipelineStep> pipeline_;  // null if this process has the whole model
  std::unique_ptr<HostOffload> offload_;    // null if no plan has offloaded anything yet
  bool plan_offloads_ = false;              // true if the current plan offloads
  std::uint64_t updates_begun_ = 0;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<WeightAverage> average_;
  Tensor step_state_;
  GradientNorm norm_;
  PartNorms part_norms_;
  std::vector<Sequences> sequences_;    // sequences of each micro-batch of the step being computed, if it has no chunks
  std::vector<Batch> chunked_batches_;  // with chunks, each micro-batch of that step
  // Spans of packed sequences, by micro-batch. The objects stay the same, because a recording refers to them.
  std::vector<std::shared_ptr<std::vector<Span>>> spans_;
  StepInputs inputs_;
  Tensor pair_weights_, pair_sums_;  // [tokens] and [1 + kPairSums] f32; undefined without preference.loss
  StepLosses losses_;
  std::unique_ptr<InputStage> stage_;
  std::optional<Event> copied_;  // event after which the state may change; reset once a step has waited for it
};

}  // namespace ring
