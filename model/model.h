#pragma once
// The interface of a network, used by training, evaluation, parallelism and inspection. The architectures are listed in
// model/architectures.h; the program itself has one, the decoder-only transformer (model/decoder.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "model/activation_plan.h"
#include "model/config.h"
#include "model/kv_cache_type.h"
#include "model/later_weights.h"
#include "model/linear_format.h"
#include "model/params.h"

namespace ring {

class AttentionLayer;
class MixerLayer;
struct KvCache;

// The parameters that one part of the forward pass uses.
struct ModelPart {
  ScopeId scope;
  ParamList params;
};

// The blocks [first, end). As a part of a model it also has the embedding if it begins with block 0, and the final norm
// and the loss head if it ends with the last block.
struct BlockRange {
  std::int64_t first = 0, end = 0;
};

// The parts of a model that a pipeline stage holds, in ascending order. Parts are assigned to stages round-robin: the
// part after one on the last stage is on the first stage.
struct PipelineStage {
  std::vector<BlockRange> parts;
  Communicator* stages = nullptr;  // the processes with the other stages; must outlive the model
};

class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Returns the current settings: a schedule may change those of attention during training.
  virtual const ModelConfig& config() const = 0;

  // --- Parameters. The constructor declares them; call shard(), then allocate(), after it.
  Parameters& parameters() { return params_; }
  const Parameters& parameters() const { return params_; }
  // Returns the parts in the order of the forward pass. A parameter, such as a tied embedding, may belong
  // to several.
  virtual std::vector<ModelPart> parts() const = 0;
  // Returns the tables with one row per token: the embedding, and the head's weight if it is not tied.
  virtual std::vector<Param*> vocab_tables() const = 0;
  // Tensor parallelism: keeps this process's shard of the parameters, by the placements that the layers declared.
  // Throws Error if sizes do not divide.
  void shard(Slice);
  // Pipeline parallelism: keeps only the parameters of this process's parts of the model (Param::held). Call before
  // shard(). Throws Error if several parts share a parameter, as with tied embeddings.
  void hold_stage(PipelineStage);
  bool is_stage() const { return !stage_.parts.empty(); }  // true if the process holds only some parts
  // Returns true if this process computes the loss; processes with other stages only take part in forward passes.
  bool has_head() const { return vocab_tables().back()->held; }
  // Allocates and fills the parameters, and calls allocate_constants().
  void allocate(const ExecContext&, std::uint64_t seed, const ParamTypes& = {});
  // Allocates tensors that are neither parameters nor computed from a batch, such as rotary frequencies.
  virtual void allocate_constants(const ExecContext&) {}

  // --- The forward pass. Run and Sequences must live until backward has run. Under tensor parallelism all processes of
  // RunLayout::tp call together with the same N ids, and each works on its own rows. All stages of a pipeline call
  // hidden() or loss() together with the same ids, and each runs its parts. Only the stage with the head gets the
  // result: on the other stages, hidden() returns an undefined value and loss() returns zeros.
  // Maps ids [N] i32 to hidden states after the final norm, [N,C], or [N/tp,C] under tensor parallelism.
  virtual Var hidden(Run&, const Tensor& ids, const Sequences&) const = 0;
  // Same, through a KV cache, to which the tokens are appended. Throws Error if the model is sharded by tensor
  // parallelism.
  virtual Var hidden(Run&, const Tensor& ids, const Sequences&, KvCache&) const = 0;
  // Returns the loss of the next-token targets in `head`; sets head.vocab itself.
  virtual LossOutput loss(Run&, const Tensor& ids, const Sequences&, LossHead) const = 0;
  // Runs one part of the model. x: the output of the previous part; the part with the embedding ignores it. Returns the
  // input of the next part; the last part returns the hidden states after the final norm.
  virtual Var run_part(Run&, const BlockRange&, const Var& x, const Tensor& ids, const Sequences&) const;
  // Same as loss(), but starts from `hidden`, the output of hidden() or of the last part.
  virtual LossOutput head_loss(Run&, const Var& hidden, LossHead) const;
  // Returns an uninitialized input for the part that begins with block `first`. tokens: number of ids in the pass (N).
  Tensor empty_input(const ExecContext&, std::int64_t first, std::int64_t tokens) const;
  // Maps hidden states [N,C] to logits [N,vocab_size]. Throws Error if the model is sharded by tensor parallelism.
  virtual Tensor logits(Run&, const Tensor& hidden) const = 0;
  // Called with the output of each part of a forward pass, for diagnosis.
  std::function<void(const ScopeId&, const Tensor&)> watch;

  // --- How activations are saved, starting with the next forward. By default all are saved.
  // host: stores the activations of blocks that offload; it must outlive the model.
  virtual void set_activations(const ActivationPlan&, SavedTensorHooks* host = nullptr) = 0;
  // Sets the rows that an MLP computes at a time, which decides the order in which gradients are summed; 0 means all.
  virtual void set_mlp_chunk(std::int64_t rows) = 0;

  // --- Attention that changes during training. Each setter returns true if the next forward will differ, which
  // invalidates captured graphs.
  // Sets attention to its state after this many trained tokens (model/attention_schedule.h). Before the first call
  // config() has the largest values of the schedule.
  virtual bool set_attention_tokens(std::int64_t /*tokens*/) { return false; }
  // Sets attention to its state in this step of a run, counted from 0. Before the first call attention is in its state
  // after the last step.
  virtual bool set_attention_step(std::int64_t /*step*/) { return false; }
  // Returns the attention layers, in layer order.
  virtual std::vector<AttentionLayer*> attention_layers() { return {}; }
  // Returns the layers that mix tokens, in layer order. By default, these are the attention layers.
  virtual std::vector<const MixerLayer*> mixers() const;
  // Returns an empty KV cache for `batch` sequences of at most `capacity` tokens. It refers to the model's layers.
  // Throws Error if a layer does not support the type.
  KvCache make_cache(std::int64_t batch, std::int64_t capacity, const ExecContext&,
                     KvCacheType = KvCacheType::automatic) const;
  // Returns the weights of adapters and attention layers that a run may start or stop using, so that checkpoints may
  // lack them; one entry for each kind.
  std::vector<LaterWeights> later_weights();
  // Returns true if any layer chooses its blocks of keys in each forward.
  virtual bool chooses_keys() const { return false; }
  // Returns the metric name of the loss that is added to Probes::auxiliary_loss; empty if there is none. Under tensor
  // parallelism each process adds its own part.
  virtual std::string auxiliary_loss() const { return ""; }

  // Returns the state that training changes besides the parameters (model/training_state.h).
  virtual std::vector<TrainingState*> training_states();

  // Keeps the format that linear layers refer to. Called by bind_linears().
  void set_linear_format(std::unique_ptr<LinearFormat> format) { linear_format_ = std::move(format); }
  LinearFormat* linear_format() const { return linear_format_.get(); }  // null if there is none

 protected:
  // Called when the parameters are sharded: assigns the layers their shard of the heads.
  virtual void on_shard() {}

  const PipelineStage& stage() const { return stage_; }
  // Runs the parts of this stage in a forward pass that all stages run together; see hidden().
  Var run_stage(Run&, const Tensor& ids, const Sequences&) const;

  Parameters params_;

 private:
  PipelineStage stage_;  // has no parts if this process holds the whole model
  std::unique_ptr<LinearFormat> linear_format_;
};

}  // namespace ring
