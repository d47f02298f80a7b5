#pragma once
// What one optimizer step computes: forward and backward of every micro-batch, the sum of the gradients over the ranks,
// their norm, the update. It knows no data, checkpoints or schedules: trainer/trainer.h does, and engine/dry_run.h runs
// the same steps without computing.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/host_offload.h"
#include "comm/mesh/mesh.h"
#include "core/step_arena.h"
#include "engine/config.h"
#include "engine/input_stage.h"
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
  // config: resolved (engine/resolve.h); host_room: bytes of the host for what the plan moves there. packed: samples
  // hold several documents. Until it ends, the stream's memory comes by way of a StepArena. Error: it does already, of
  // another one. OutOfMemory with advice.
  TrainStep(const Config& config, const ExecContext& ctx, Mesh& mesh, const ActivationPlan&, std::size_t host_room,
            bool packed);
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // This rank's micro-batches go to the device, on a stream of their own.
  void load(const std::vector<Batch>& batches);
  // Everything between the inputs and the new weights; nothing in here depends on the step but through device memory,
  // and, with packed documents, through where they lie. Within a StepScope of arena().
  void compute();
  // After compute() failed, in a world of one: the next call begins anew.
  void abandon() { data().finish_gradients(); }
  void set_activations(const ActivationPlan& plan);
  // What they are predicted to take of the host, ahead of the first step. Error: OutOfHostMemory.
  void reserve_host(std::size_t bytes) {
    if (offload_) offload_->reserve(bytes);
  }
  // Between steps: what states on the host may take of the device on their way; 0: the least. OutOfMemory with advice.
  void set_staging(std::size_t bytes);
  // In a world of one, between steps: from the next load() on, batches hold so many sequences. They divide the step's.
  void set_micro_batch(std::int64_t sequences);
  // Between steps: from the next load() on, a step has so many sequences over all replicas, at most as many as the
  // largest of the run. What a step takes of memory, and a recording of one, is then another.
  void set_batch_size(std::int64_t sequences);
  // The state is being copied: the next update comes after this event. The rest of its step does not wait.
  void keep_state_until(const Event& copied) { copied_ = copied; }
  bool waits_for_copies() const { return copied_.has_value(); }
  // Between steps, on all ranks: the model computes with the average of its weights (train.ema), until the next call.
  // What it computed before has waited for all of its weights.
  void exchange_average();

  // All ranks together, of the step that was loaded: the entropy of each layer's attention over this rank's first
  // micro-batch, as Run::entropies has it. Dropout is off.
  std::vector<Tensor> attention_entropies();

  // Returns what the training states of the model need.
  StepAccess access();

  // A run of the model over micro-batch `index` of this rank.
  Run micro_run(std::size_t index, Tape*);

  // Shows every kernel of the steps that are computed from now on; null: nobody watches.
  void observe(std::shared_ptr<KernelObserver> observer) { ctx_.observer = std::move(observer); }

  const ExecContext& exec() const { return ctx_; }
  StepArena& arena() { return *arena_; }
  std::shared_ptr<StepArena> shared_arena() const { return arena_; }
  const ParallelPlan& plan() const { return plan_; }
  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  ContextBatches& context() { return parallel_.context; }
  DataParallel& data() { return *parallel_.data; }
  const DataParallel& data() const { return *parallel_.data; }
  Optimizer& optimizer() { return *optimizer_; }
  WeightAverage* average() { return average_.get(); }                                  // null: there is none
  const PartNorms& part_norms() const { return part_norms_; }                          // of the step that was computed
  const HostOffload* offload() const { return offloads_ ? offload_.get() : nullptr; }  // null: all stays on the device
  const Tensor& state() const { return step_state_; }                                  // a StepState on the device
  // The step's, over all ranks, f32: the loss, [0], of a mixture each corpus's loss and targets, [1, corpora] and
  // [1 + corpora, 2 corpora], and the model's auxiliary loss, if it has one, as the last one.
  const Tensor& losses() const { return losses_; }
  bool has_auxiliary_loss() const { return !model_->auxiliary_loss().empty(); }
  std::int64_t corpora() const { return corpora_; }                                       // of a mixture; 0: one
  std::size_t micro_batches() const { return static_cast<std::size_t>(micro_batches_); }  // of this rank in a step
  std::string lasting_memory() const;  // "weights 1.50 GiB, gradients .., moments .."

 private:
  Parallelized parallelized();
  std::unique_ptr<Optimizer> make_optimizer();
  std::unique_ptr<WeightAverage> make_average();
  std::vector<Communicator*> norm_groups();
  void allocate_inputs();
  void lay_out_sequences();
  void place_documents(std::size_t index, const Batch&);
  Tensor losses_of(std::int64_t first, std::int64_t count) const { return losses_.narrow(0, first, count); }
  std::int64_t micro_tokens() const { return plan_.micro_batch * parallel_.context.tokens(); }
  Tensor micro_part(const Tensor& all, std::size_t index) const;
  void forward(std::vector<Tensor>* entropies);
  void micro_step(std::size_t index);
  void sum_losses();
  void update();

  const Config& config_;
  ExecContext ctx_;
  ObservedScopes observed_{ctx_};  // the first to be told: what the others queue belongs to the scope
  std::shared_ptr<StepArena> arena_;
  StepMemory step_memory_;
  ScopeSubscription phases_{ctx_.scopes, *arena_};
  Mesh& mesh_;
  bool packed_;
  const std::int64_t corpora_;
  ParallelPlan plan_;
  std::int64_t micro_batches_ = plan_.micro_batches;
  std::unique_ptr<Model> model_;
  Parallelized parallel_;
  const std::size_t host_room_;
  std::unique_ptr<HostOffload> offload_;  // null: no plan has moved anything yet
  bool offloads_ = false;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<WeightAverage> average_;
  Tensor step_state_;
  GradientNorm norm_;
  PartNorms part_norms_;
  std::vector<Sequences> sequences_;                       // of each micro-batch of the step being computed
  std::vector<std::shared_ptr<std::vector<Span>>> spans_;  // of packed ones, whose places a recording refers to
  StepInputs inputs_;
  Tensor losses_;
  std::unique_ptr<InputStage> stage_;
  std::optional<Event> copied_;  // the state, for a checkpoint; until a step has waited for it
};

}  // namespace ring
