#pragma once
// The decoder-only transformer: maps tokens to hidden states, loss or logits.

#include <deque>
#include <functional>
#include <memory>

#include "model/attention_layer.h"
#include "model/attention_schedule.h"
#include "model/block_runner.h"
#include "model/ffn.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/training_state.h"

namespace ring {

class DecoderBlock {
 public:
  DecoderBlock(const ParamPrefix&, const ModelConfig& resolved, std::int64_t layer, const Pattern&,
               const Tensor& inv_freq, const MakeFfn&);
  Var operator()(Run&, const Var& x, const Sequences&, ForwardPass&) const;
  Var operator()(Run&, const Var& x, const Sequences&, ForwardPass&, LayerCache&,
                 const std::vector<std::int32_t>& lengths) const;
  ParamList parameters() const;

  MixerLayer& mixer() const { return *mixer_; }
  AttentionLayer* attention() const { return mixer_->attention(); }  // null if the block has a different mixer

  BlockRunner runner;

 private:
  // Returns x + sublayer(norm(x)), or what model.norm_place says instead. Applies dropout to the output of the
  // sublayer. out_norm: the norm of the output of the sublayer, if norm_place has one.
  template <class Sublayer>
  Var add_sublayer(Run&, const Var& x, const std::optional<Norm>& norm, const std::optional<Norm>& out_norm,
                   std::uint32_t dropout_site, const Sublayer&) const;
  template <class Attend>
  Var forward(Run&, const Var& x, const Attend&) const;

  NormPlace place_;
  float dropout_;
  std::uint32_t attention_site_, mlp_site_;
  std::optional<Norm> attention_norm_, mlp_norm_;          // none with NormPlace::reordered
  std::optional<Norm> attention_out_norm_, mlp_out_norm_;  // only with sandwich and reordered
  std::unique_ptr<MixerLayer> mixer_;
  std::unique_ptr<FfnLayer> mlp_;
};

class Decoder : public Model {
 public:
  // Declares the parameters. vocab_padding: the embedding's row count is padded to a multiple of it. make_ffn creates
  // the feed-forward layer of each block.
  explicit Decoder(const ModelConfig&, std::int64_t vocab_padding = 1, const MakeFfn& make_ffn = make_feed_forward);

  const ModelConfig& config() const override { return config_; }
  std::vector<ModelPart> parts() const override;  // embedding, blocks, final norm, loss head
  std::vector<Param*> vocab_tables() const override;
  void allocate_constants(const ExecContext&) override;

  Var hidden(Run&, const Tensor& ids, const Sequences&) const override;
  Var hidden(Run&, const Tensor& ids, const Sequences&, KvCache&) const override;
  LossOutput loss(Run&, const Tensor& ids, const Sequences&, LossHead) const override;
  Var run_part(Run&, const BlockRange&, const Var& x, const Tensor& ids, const Sequences&) const override;
  LossOutput head_loss(Run&, const Var& hidden, LossHead) const override;
  Tensor logits(Run&, const Tensor& hidden) const override;

  void set_activations(const ActivationPlan&, SavedTensorHooks* host = nullptr) override;
  void set_mlp_chunk(std::int64_t rows) override;

  bool set_attention_tokens(std::int64_t tokens) override;
  bool set_attention_step(std::int64_t step) override;
  std::vector<AttentionLayer*> attention_layers() override;
  std::vector<const MixerLayer*> mixers() const override;
  bool chooses_keys() const override;
  std::string auxiliary_loss() const override;
  std::vector<TrainingState*> training_states() override;

  std::deque<DecoderBlock>& blocks() { return blocks_; }

 private:
  void on_shard() override;
  void check_run(const Run&, const Tensor& ids) const;
  Var embed(Run&, const Tensor& ids, const Sequences&) const;
  Var run_blocks(Run&, Var x, const Sequences&, std::size_t first, std::size_t end, ForwardPass&) const;
  // Runs the blocks of a range. Backward reruns blocks in segments (ActivationPlan) from the input of their segment.
  // Requires that the range splits no segment.
  Var run_segments(Run&, Var x, const Sequences&, const BlockRange&) const;
  bool has_trained_params(std::size_t first,
                          std::size_t end) const;  // true if some parameter of these blocks is not frozen
  Var apply_final_norm(Run&, const Var& x) const;
  const Param& head() const { return head_ ? *head_ : *token_table_; }
  void show(const ScopeId& part, const Var& v) const {
    if (watch) watch(part, v.value);
  }

  ModelConfig config_, scheduled_;  // config_: settings of the current stage; scheduled_: settings with their schedules
  std::vector<std::int64_t> change_points_ = attention_change_points(config_);
  std::optional<std::size_t> stage_;  // number of change_points_ applied; nullopt before set_attention_tokens()
  std::vector<Tensor> inv_freqs_;  // for model.rope, then for each entry of model.rope_layers; undefined: no rotation
  Param* token_table_;
  Param* position_table_ = nullptr;
  std::deque<DecoderBlock> blocks_;
  std::vector<std::unique_ptr<TrainingState>> states_;     // of the variants of attention
  std::size_t segment_blocks_ = 0, segmented_blocks_ = 0;  // blocks per segment, blocks in all segments
  std::optional<Norm> final_norm_;
  Param* head_ = nullptr;  // null if tied to the token embedding
};

}  // namespace ring
