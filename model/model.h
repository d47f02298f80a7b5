#pragma once
// The interface of a network: what training, evaluation, parallelism and inspection need of it. The architectures are
// listed in model/architectures.h; the decoder-only transformer (model/decoder.h) is the one that the program has.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "model/activation_plan.h"
#include "model/config.h"
#include "model/later_weights.h"
#include "model/params.h"

namespace ring {

class AttentionLayer;
class TrainingState;
struct KvCache;

// The parameters that one part of the forward pass uses.
struct ModelPart {
  ScopeId scope;
  ParamList params;
};

class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // The settings as the model computes now: a schedule may change those of attention during training.
  virtual const ModelConfig& config() const = 0;

  // --- Parameters. The constructor declares them; shard() and allocate() come after it, in this order.
  Parameters& parameters() { return params_; }
  const Parameters& parameters() const { return params_; }
  // Returns the parts in the order of the forward pass. A parameter may belong to several.
  virtual std::vector<ModelPart> parts() const = 0;
  // Returns the tables with one row per token: the embedding, and the head's if it is a different one.
  virtual std::vector<Param*> vocab_tables() const = 0;
  // Tensor parallelism: keeps this process's slice of the parameters, by the placements that the layers declared.
  // Throws Error if sizes do not divide.
  void shard(Slice);
  // Allocates and fills the parameters, and what allocate_constants() allocates.
  void allocate(const ExecContext&, std::uint64_t seed, const ParamTypes& = {});
  // Allocates what is neither a parameter nor computed from a batch, such as rotary frequencies.
  virtual void allocate_constants(const ExecContext&) {}

  // --- The forward pass. Run and Sequences live until the backward has run. A slice of a model runs together with the
  // others (Run::tp), all given the same N ids, and works on its rows.
  // ids [N] i32 -> [N,C], or [N/tp,C] of a slice, after the final norm.
  virtual Var hidden(Run&, const Tensor& ids, const Sequences&) const = 0;
  // As above, but through a KV cache, to which the tokens are appended. Throws Error if tensor parallelism sliced the
  // model.
  virtual Var hidden(Run&, const Tensor& ids, const Sequences&, KvCache&) const = 0;
  // Fills in head.vocab.
  virtual LossOutput loss(Run&, const Tensor& ids, const Sequences&, LossHead) const = 0;
  // [N,C] -> [N,vocab_size]. Throws Error if tensor parallelism sliced the model.
  virtual Tensor logits(Run&, const Tensor& hidden) const = 0;
  // Called with the output of each part of a forward pass, for diagnosis.
  std::function<void(const ScopeId&, const Tensor&)> watch;

  // --- How activations are saved, starting with the next forward. By default all are saved.
  // host: stores the activations of blocks that offload; it must outlive the model.
  virtual void set_activations(const ActivationPlan&, SavedTensorHooks* host = nullptr) = 0;
  // Rows that an MLP computes at a time, which decides in what order gradients are added up; 0: all.
  virtual void set_mlp_chunk(std::int64_t rows) = 0;

  // --- Attention that changes during training. Each setter returns true if the next forward will differ, which makes
  // captured graphs stale.
  // Sets attention to its state after this many trained tokens (model/attention_schedule.h). Before the first call,
  // config() has the largest values of the schedule.
  virtual bool set_attention_tokens(std::int64_t /*tokens*/) { return false; }
  // Sets attention to its state in this step of a run, counted from 0. Before the first call it is that after the last
  // step.
  virtual bool set_attention_step(std::int64_t /*step*/) { return false; }
  // Returns the attention layers, by layer.
  virtual std::vector<AttentionLayer*> attention_layers() { return {}; }
  // Returns those of the attention layers, one entry for each kind.
  std::vector<LaterWeights> later_weights();
  virtual bool selects() const { return false; }  // any layer chooses its blocks in each forward
  // Returns the name in metrics of the loss that Run::auxiliary_loss gets; empty if there is none. Each slice of a
  // model adds its own part.
  virtual std::string auxiliary_loss() const { return ""; }

  // Returns what training changes beside the parameters (model/training_state.h).
  virtual std::vector<TrainingState*> training_states() { return {}; }

 protected:
  // Called when the parameters are cut: gives the layers their slice's heads.
  virtual void on_shard() {}

  Parameters params_;
};

}  // namespace ring
