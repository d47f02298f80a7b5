#pragma once
// The decoder-only transformer. Tokens in, hidden states, loss or logits out.

#include <deque>
#include <functional>
#include <memory>

#include "model/activation_plan.h"
#include "model/attention/importance.h"
#include "model/attention_schedule.h"
#include "model/layers.h"
#include "model/patterns.h"

namespace ring {

class DecoderBlock {
 public:
  DecoderBlock(const ParamPrefix&, const ModelConfig& resolved, std::int64_t layer, const Pattern&,
               const Tensor& inv_freq);
  // shared: as of AttentionLayer.
  Var operator()(Run&, const Var& x, const Sequences&, BlockSelection* shared) const;
  Var operator()(Run&, const Var& x, const Sequences&, BlockSelection* shared, LayerCache&,
                 const std::vector<std::int32_t>& lengths) const;
  ParamList parameters() const;

  AttentionLayer& attention() { return attention_; }
  const AttentionLayer& attention() const { return attention_; }
  FeedForward& mlp() { return mlp_; }

  BlockPlan plan;
  std::int64_t mlp_chunk = 0;
  SavedTensorHooks* host = nullptr;  // where plan.offload sends what is saved

 private:
  template <class Sublayer>
  Var add_to_stream(Run&, const Var& x, std::uint32_t site, const Sublayer&) const;
  template <class Attend>
  Var forward(Run&, const Var& x, const Attend&) const;

  std::int64_t layer_;
  NormPlace place_;
  float dropout_;
  std::uint32_t attention_site_, mlp_site_;
  Norm attention_norm_, mlp_norm_;
  AttentionLayer attention_;
  FeedForward mlp_;
};

// What a part of the model uses of the parameters.
struct ModelPart {
  ScopeId scope;
  ParamList params;
};

class Decoder {
 public:
  // Declares the parameters; allocate() fills them. vocab_padding: rows of the embedding in memory are a multiple of
  // it.
  explicit Decoder(const ModelConfig&, std::int64_t vocab_padding = 1);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  void allocate(const ExecContext&, std::uint64_t seed, const ParamTypes& = {});
  // What allocate() does for other things than parameters.
  void allocate_constants(const ExecContext&);

  // ids [N] i32 -> [N,C], after the final norm. Run and Sequences live until the backward has run. A slice of the model
  // runs with the others (Run::tp), all given the same N ids, and returns its rows [N/tp,C].
  Var hidden(Run&, const Tensor& ids, const Sequences&) const;
  Var hidden(Run&, const Tensor& ids, const Sequences&, KvCache&) const;  // the same through a cache, which it advances
  LossOutput loss(Run&, const Tensor& ids, const Sequences&, LossHead) const;  // head.vocab is filled in
  Tensor logits(Run&, const Tensor& hidden) const;                             // [N,C] -> [N, vocab_size]

  // Where attention changes as tokens are trained (model/attention_schedule.h): from the next forward on it is as after
  // so many; until then config() has the largest numbers of the run. Returns whether that is another than before.
  bool attend_as_of(std::int64_t tokens);

  const ModelConfig& config() const { return config_; }  // as the model computes now
  Parameters& parameters() { return params_; }
  const Parameters& parameters() const { return params_; }

  std::deque<DecoderBlock>& blocks() { return blocks_; }
  // One for each layer that keeps blocks by importance.
  std::vector<BlockImportance>& importance() { return importance_; }
  // The layers keep what these say now, from the next pass on.
  void take_important_blocks();
  std::vector<Param*> vocab_tables() const;  // rows by token: the embedding, and the head's where it is another one

  // In the order of the forward pass: embedding, blocks, final norm, loss head. A parameter may belong to several.
  std::vector<ModelPart> parts() const;

  // From the next forward on; until then everything is kept. host: takes what the blocks that offload save; lives as
  // long.
  void set_activations(const ActivationPlan&, SavedTensorHooks* host = nullptr);
  // How many rows an MLP sublayer computes at a time (over_chunks), which decides in what order gradients are added up.
  void set_mlp_chunk(std::int64_t rows);  // from the next forward on; until then 0: all
  // From the next forward on attention is as in this step (counted from 0) of a run; until then, as after its last.
  // Returns whether that is another way than before: work that was recorded has to be recorded anew.
  bool attend_as_in_step(std::int64_t step);
  bool has_indexer() const;  // of some layer
  bool selects() const;      // some layer
  // Called with what each part of a forward pass returns, for diagnosis.
  std::function<void(const ScopeId&, const Tensor&)> watch;

 private:
  void check_run(const Run&, const Tensor& ids) const;
  Var embed(Run&, const Tensor& ids, const Sequences&) const;
  using Selections = std::vector<BlockSelection>;  // by layer: of those that share theirs
  BlockSelection* shared(Selections&, std::size_t layer) const;
  Var run_blocks(Run&, Var x, const Sequences&, std::size_t first, std::size_t end, Selections&) const;
  Var run_segments(Run&, Var x, const Sequences&) const;  // all of them
  bool trains(std::size_t first, std::size_t end) const;  // whether a parameter of these blocks is not frozen
  Var finish(Run&, const Var& x) const;
  const Param& head() const { return head_ ? *head_ : *tokens_; }
  void seen(const ScopeId& part, const Var& v) const {
    if (watch) watch(part, v.value);
  }

  ModelConfig config_, settings_;  // settings_: with what changes
  std::vector<std::int64_t> sharing_ = sharing_layers(config_), changes_ = attention_changes(config_);
  std::optional<std::size_t> stage_;  // of changes_; none: not yet asked for one
  Parameters params_;
  Tensor inv_freq_;
  Param* tokens_;
  Param* positions_ = nullptr;
  std::deque<DecoderBlock> blocks_;
  std::vector<BlockImportance> importance_;
  std::size_t segment_blocks_ = 0, in_segments_ = 0;  // of a segment, of all
  std::optional<Norm> final_norm_;
  Param* head_ = nullptr;  // null: tied to the token embedding
};

}  // namespace ring
