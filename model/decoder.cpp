#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"
#include "core/philox.h"
#include "kernels/matmul.h"
#include "model/gated_delta_net.h"
#include "model/patterns.h"
#include "model/rope.h"
#include "model/scopes.h"

namespace ring {
namespace {

// Returns pass(seqs). If dynamic scaling stretches a document, passes a copy of seqs with frequencies per document
// instead. Throws in that case if the pass is recorded for a backward: the recomputation of a checkpointed segment
// would read the copy, which is destroyed by then. seen: tokens of each document that a cache holds.
template <class Pass>
Var with_frequencies(const ModelConfig& c, const Sequences& seqs, const std::vector<std::int32_t>& seen, const Run& run,
                     const Pass& pass) {
  if (c.positions != Positions::rope) return pass(seqs);
  const Tensor own = stretched_frequencies(c.rope, c.head_dim, seqs, seen, run.ctx);
  if (!own.defined()) return pass(seqs);
  RING_CHECK(!run.tape, "model.rope.scaling: dynamic has no backward for documents of more than ",
             c.rope.original_context, " tokens (model.rope.original_context)");
  Sequences copy = seqs;
  copy.inv_freq = own;
  return pass(copy);
}

bool has_out_norms(NormPlace place) { return place == NormPlace::sandwich || place == NormPlace::reordered; }

std::optional<Norm> norm_at(const ParamPrefix& at, const char* name, const ModelConfig& c, bool exists) {
  return exists ? std::optional<Norm>(std::in_place, at.child(name), c.width, c) : std::nullopt;
}

// Returns, for each layer, the index of its rotary frequencies in Decoder::inv_freqs_: 0 for model.rope, 1 + i for
// entry i of model.rope_layers.
std::vector<std::size_t> rope_indices(const ModelConfig& c) {
  std::vector<std::size_t> indices;
  for (const RopeConfig* rope : ropes_of(c)) {
    std::size_t i = c.rope_layers.size();
    while (i > 0 && rope != &c.rope_layers[i - 1].rope) --i;
    indices.push_back(i);
  }
  return indices;
}

std::unique_ptr<MixerLayer> make_mixer(const ParamPrefix& at, const ModelConfig& c, std::int64_t layer,
                                       const Pattern& pattern, const Tensor& inv_freq) {
  if (mixer_of(c, layer) == Mixer::gated_delta_net)
    return std::make_unique<GatedDeltaNet>(at.child("gated_delta_net"), c, layer);
  return std::make_unique<AttentionLayer>(at.child("attention"), c, layer, pattern, inv_freq,
                                          site_of(str("dropout.weights.", layer)));
}

}  // namespace

DecoderBlock::DecoderBlock(const ParamPrefix& at, const ModelConfig& c, std::int64_t layer, const Pattern& pattern,
                           const Tensor& inv_freq, const MakeFfn& make_ffn)
    : runner(layer),
      place_(norm_place_of(c, layer)),
      dropout_(static_cast<float>(c.dropout)),
      attention_site_(site_of(str("dropout.attention.", layer))),
      mlp_site_(site_of(str("dropout.mlp.", layer))),
      attention_norm_(norm_at(at, "attention_norm", c, place_ != NormPlace::reordered)),
      mlp_norm_(norm_at(at, "mlp_norm", c, place_ != NormPlace::reordered)),
      attention_out_norm_(norm_at(at, "attention_out_norm", c, has_out_norms(place_))),
      mlp_out_norm_(norm_at(at, "mlp_out_norm", c, has_out_norms(place_))),
      mixer_(make_mixer(at, c, layer, pattern, inv_freq)),
      mlp_(make_ffn(at.child("mlp"), c, layer)) {}

ParamList DecoderBlock::parameters() const {
  ParamList all;
  const auto add = [&](const std::optional<Norm>& norm) {
    if (norm) all += norm->parameters();
  };
  add(attention_norm_);
  all += mixer_->parameters();
  add(attention_out_norm_);
  add(mlp_norm_);
  all += mlp_->parameters();
  add(mlp_out_norm_);
  return all;
}

// Adds x to the sublayer's result: in the sublayer's last GEMM, or together with dropout if there is dropout.
template <class Sublayer>
Var DecoderBlock::add_sublayer(Run& run, const Var& x, const std::optional<Norm>& norm,
                               const std::optional<Norm>& out_norm, std::uint32_t dropout_site,
                               const Sublayer& sublayer) const {
  const bool post = place_ == NormPlace::post;
  const Var in = post || !norm ? x : (*norm)(run, x);
  const float rate = run.training ? dropout_ : 0;
  if (out_norm) return dropout_add(run, (*out_norm)(run, sublayer(run, in, Var{})), x, rate, dropout_site);
  const Var y = rate == 0 ? sublayer(run, in, x) : dropout_add(run, sublayer(run, in, Var{}), x, rate, dropout_site);
  return post ? (*norm)(run, y) : y;
}

template <class Attend>
Var DecoderBlock::forward(Run& run, const Var& x, const Attend& attend) const {
  const Var h = runner.attention(run, x, [&](Run& r, const Var& rows) {
    return add_sublayer(r, rows, attention_norm_, attention_out_norm_, attention_site_, attend);
  });
  return runner.mlp(run, h, [&](Run& r, const Var& rows) {
    return add_sublayer(r, rows, mlp_norm_, mlp_out_norm_, mlp_site_, *mlp_);
  });
}

Var DecoderBlock::operator()(Run& run, const Var& x, const Sequences& seqs, ForwardPass& pass) const {
  return forward(run, x,
                 [&](Run& r, const Var& in, const Var& residual) { return (*mixer_)(r, in, seqs, residual, pass); });
}

Var DecoderBlock::operator()(Run& run, const Var& x, const Sequences& seqs, ForwardPass& pass, LayerCache& cache,
                             const std::vector<std::int32_t>& lengths) const {
  return forward(run, x, [&](Run& r, const Var& in, const Var& residual) {
    return (*mixer_)(r, in, seqs, residual, pass, cache, lengths);
  });
}

Decoder::Decoder(const ModelConfig& config, std::int64_t vocab_padding, const MakeFfn& make_ffn)
    : config_(config.resolved()), scheduled_(config_), inv_freqs_(1 + config_.rope_layers.size()) {
  const ModelConfig& c = config_;
  RING_CHECK(c.vocab_size > 0, "the model needs a vocabulary size");
  const ParamPrefix root{params_, ""};
  const Init normal{Init::Kind::normal, static_cast<float>(c.init_std)};
  const Placement by_token{.cut = Cut::outputs, .row_multiple = vocab_padding};
  token_table_ = &params_.add({{"embedding.tokens.weight", 0, c.vocab_size, normal}}, c.width, by_token);
  token_table_->table = true;
  if (c.positions == Positions::learned) {
    position_table_ = &params_.add({{"embedding.positions.weight", 0, c.context, normal}}, c.width);
    position_table_->table = true;
  }
  const std::vector<Pattern> patterns = patterns_of(c);
  const std::vector<std::size_t> ropes = rope_indices(c);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    blocks_.emplace_back(root.child(str("blocks.", i)), c, i, patterns[at], inv_freqs_[ropes[at]], make_ffn);
  }
  for (const AttentionVariantKind* kind : attention_variants())
    if (kind->make_state) states_.push_back(kind->make_state(*this, patterns));
  if (c.norm_place != NormPlace::post) final_norm_.emplace(root.child("final_norm"), c.width, c);
  if (!c.tied_embeddings) {
    head_ = &params_.add({{"head.weight", 0, c.vocab_size, normal}}, c.width, by_token);
    head_->table = true;
  }
  for (Param* p : params_.declared()) p->base = c.lora.rank > 0 && !p->adapter;
}

std::vector<ModelPart> Decoder::parts() const {
  std::vector<ModelPart> out{{{scopes::embedding}, {token_table_}}};
  if (position_table_) out[0].params.push_back(position_table_);
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    out.push_back({block_scope(static_cast<std::int64_t>(i)), blocks_[i].parameters()});
  out.push_back({{scopes::final_norm}, final_norm_ ? final_norm_->parameters() : ParamList{}});
  out.push_back({{scopes::loss_head}, {head_ ? head_ : token_table_}});
  return out;
}

std::vector<Param*> Decoder::vocab_tables() const {
  return head_ ? std::vector<Param*>{token_table_, head_} : std::vector<Param*>{token_table_};
}

// Restricts attention to this process's heads. Between sublayers each process holds its rows of the residual stream
// (sequence parallelism): norms and dropout work on these rows, and the gradients of replicated parameters are summed
// over the slices.
void Decoder::on_shard() {
  const ModelConfig& c = config_;
  const Slice& slice = params_.slice();
  const std::int64_t kv_heads = c.kv_heads / slice.size;
  const KvHeads own{slice.rank * kv_heads, kv_heads};
  const std::vector<Pattern> patterns = patterns_of(c, own);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    blocks_[i].mixer().restrict_to_slices(slice.size);
    if (AttentionLayer* a = blocks_[i].attention()) a->restrict_to_heads(c.heads / slice.size, own, patterns[i]);
  }
}

void Decoder::set_activations(const ActivationPlan& plan, SavedTensorHooks* host) {
  RING_CHECK(plan.blocks.size() == blocks_.size(), "a plan of activations for ", plan.blocks.size(),
             " blocks, but the model has ", blocks_.size());
  segment_blocks_ = static_cast<std::size_t>(plan.segment_blocks);
  segmented_blocks_ = static_cast<std::size_t>(plan.segments) * segment_blocks_;
  RING_CHECK(segmented_blocks_ < blocks_.size(), plan.segments, " segments of ", plan.segment_blocks,
             " blocks, but the model has ", blocks_.size(), ", the last of which cannot be in a segment");
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    RING_CHECK(i >= segmented_blocks_ || !plan.blocks[i].offload, "block ", i,
               " would offload activations that are recomputed");
    RING_CHECK(host || !plan.blocks[i].offload, "block ", i,
               " would offload its activations, but the run has no offload");
    blocks_[i].runner.plan = plan.blocks[i];
    blocks_[i].runner.host = host;
  }
}

bool Decoder::set_attention_step(std::int64_t step) {
  bool changed = false;
  for (AttentionLayer* layer : attention_layers()) changed |= layer->set_step(step);
  return changed;
}

std::vector<AttentionLayer*> Decoder::attention_layers() {
  std::vector<AttentionLayer*> layers;
  for (DecoderBlock& block : blocks_)
    if (AttentionLayer* layer = block.attention()) layers.push_back(layer);
  return layers;
}

std::vector<const MixerLayer*> Decoder::mixers() const {
  std::vector<const MixerLayer*> all;
  for (const DecoderBlock& block : blocks_) all.push_back(&block.mixer());
  return all;
}

std::string Decoder::auxiliary_loss() const {
  for (const DecoderBlock& block : blocks_)
    if (const AttentionLayer* a = block.attention(); a && !a->auxiliary_loss().empty()) return a->auxiliary_loss();
  return "";
}

std::vector<TrainingState*> Decoder::training_states() {
  std::vector<TrainingState*> all;
  for (const auto& state : states_) all.push_back(state.get());
  for (TrainingState* state : Model::training_states()) all.push_back(state);
  return all;
}

bool Decoder::chooses_keys() const {
  return std::ranges::any_of(blocks_, [](const DecoderBlock& block) {
    const AttentionLayer* a = block.attention();
    return a && a->selects();
  });
}

void Decoder::set_mlp_chunk(std::int64_t rows) {
  for (DecoderBlock& block : blocks_) block.runner.mlp_chunk = rows;
}

void Decoder::allocate_constants(const ExecContext& ctx) {
  if (config_.positions != Positions::rope) return;
  for (std::size_t i = 0; i < inv_freqs_.size(); ++i) {
    const RopeConfig& rope = i == 0 ? config_.rope : config_.rope_layers[i - 1].rope;
    const std::vector<float> frequencies = rope_frequencies(rope, config_.head_dim);
    if (!frequencies.empty()) inv_freqs_[i] = from_host(frequencies, ctx.stream, Lifetime::run);
  }
}

Var Decoder::embed(Run& run, const Tensor& ids, const Sequences& seqs) const {
  const ScopeGuard scope = run.enter({scopes::embedding});
  Var x = vocab_parallel_embedding(run, ids, token_table_->var);
  if (config_.embedding_scale != 1) x = scale(run, x, static_cast<float>(config_.embedding_scale));
  if (position_table_) x = add(run, x, embedding(run, local_rows(run, seqs.positions), position_table_->var));
  if (run.training) x = dropout_add(run, x, {}, static_cast<float>(config_.dropout), site_of("dropout.embedding"));
  show({scopes::embedding}, x);
  return x;
}

Var Decoder::apply_final_norm(Run& run, const Var& x) const {
  const ScopeGuard scope = run.enter({scopes::final_norm});
  const Var y = final_norm_ ? (*final_norm_)(run, x) : x;
  show({scopes::final_norm}, y);
  return y;
}

// Throws Error if the model is sharded differently from the run, or if the N tokens do not divide evenly among the
// slices.
void Decoder::check_run(const Run& run, const Tensor& ids) const {
  const int slices = params_.slice().size, processes = run.layout.tp ? run.layout.tp->size() : 1;
  RING_CHECK(slices == processes && (!run.layout.tp || params_.slice().rank == run.layout.tp->rank()), "slice ",
             params_.slice().rank, " of ", slices, " of a model, in a run where tensor parallelism has ", processes,
             " processes: they must agree");
  RING_CHECK(ids.dim(0) % slices == 0, ids.dim(0), " tokens of a micro-batch do not divide among ", slices, " slices");
}

bool Decoder::set_attention_tokens(std::int64_t tokens) {
  const std::size_t stage = attention_stage(change_points_, tokens);
  if (change_points_.empty() || std::exchange(stage_, stage) == stage) return false;
  config_ = with_attention_at(scheduled_, tokens);
  const Slice slice = params_.slice();
  const std::int64_t kv_heads = config_.kv_heads / slice.size;
  const std::vector<Pattern> patterns = patterns_of(config_, {slice.rank * kv_heads, kv_heads});
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    if (AttentionLayer* a = blocks_[i].attention()) a->set_pattern(patterns[i]);
  for (const auto& state : states_) state->on_patterns_set();
  return true;
}

Var Decoder::run_blocks(Run& run, Var x, const Sequences& seqs, std::size_t first, std::size_t end,
                        ForwardPass& pass) const {
  for (std::size_t i = first; i < end; ++i) {
    const ScopeGuard scope = run.enter(block_scope(static_cast<std::int64_t>(i)));
    x = blocks_[i](run, x, seqs, pass);
    show(run.ctx.scopes->current(), x);
  }
  return x;
}

Var Decoder::hidden(Run& run, const Tensor& ids, const Sequences& seqs) const {
  if (is_stage()) return run_stage(run, ids, seqs);
  return run_part(run, {0, std::ssize(blocks_)}, {}, ids, seqs);
}

Var Decoder::run_part(Run& run, const BlockRange& part, const Var& x, const Tensor& ids, const Sequences& seqs) const {
  check_run(run, ids);
  Var h = part.first == 0 ? embed(run, ids, seqs) : x;
  h = with_frequencies(config_, seqs, {}, run,
                       [&](const Sequences& s) { return run_segments(run, std::move(h), s, part); });
  return part.end == std::ssize(blocks_) ? apply_final_norm(run, h) : h;
}

bool Decoder::has_trained_params(std::size_t first, std::size_t end) const {
  return std::any_of(blocks_.begin() + static_cast<std::ptrdiff_t>(first),
                     blocks_.begin() + static_cast<std::ptrdiff_t>(end), [](const DecoderBlock& block) {
                       return std::ranges::any_of(block.parameters(), [](const Param* p) { return !p->is_frozen(); });
                     });
}

Var Decoder::run_segments(Run& run, Var x, const Sequences& seqs, const BlockRange& part) const {
  const auto pass = std::make_shared<ForwardPass>(blocks_.size());
  const auto last = static_cast<std::size_t>(part.end);
  for (std::size_t first = static_cast<std::size_t>(part.first), end = 0; first < last; first = end) {
    const bool segment = first < segmented_blocks_;
    end = segment ? first + segment_blocks_ : last;
    const bool again = segment && (x.slot || has_trained_params(first, end));
    const auto some = [this, &seqs, first, end, pass](Run& r, const Var& in) {
      return run_blocks(r, in, seqs, first, end, *pass);
    };
    x = again ? checkpoint_segment(run, x, some) : some(run, x);
  }
  return x;
}

Var Decoder::hidden(Run& run, const Tensor& ids, const Sequences& seqs, KvCache& cache) const {
  RING_CHECK(!is_tensor_parallel(run) && params_.slice().size == 1,
             "generation with a cache needs the whole model in one process, ", "but this is slice ",
             params_.slice().rank, " of ", params_.slice().size);
  cache.check_room(seqs);
  Var x = embed(run, ids, seqs);
  ForwardPass pass(blocks_.size());
  x = with_frequencies(config_, seqs, cache.lengths, run, [&](const Sequences& s) {
    Var h = std::move(x);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const ScopeGuard scope = run.enter(block_scope(static_cast<std::int64_t>(i)));
      h = blocks_[i](run, h, s, pass, cache.layers[i], cache.lengths);
    }
    return h;
  });
  for (std::size_t b = 0; b < cache.lengths.size(); ++b) cache.lengths[b] += seqs.offsets[b + 1] - seqs.offsets[b];
  return apply_final_norm(run, x);
}

LossOutput Decoder::loss(Run& run, const Tensor& ids, const Sequences& seqs, LossHead options) const {
  const Var x = hidden(run, ids, seqs);
  if (has_head()) return head_loss(run, x, std::move(options));
  const Tensor zeros = run.ctx.zeros({options.targets.numel()});
  return {{run.ctx.zeros({1}), nullptr}, zeros, options.correct ? zeros : Tensor{}};
}

LossOutput Decoder::head_loss(Run& run, const Var& x, LossHead options) const {
  options.vocab = config_.vocab_size;
  options.soft_cap = static_cast<float>(config_.logit_soft_cap);
  const ScopeGuard scope = run.enter({scopes::loss_head});
  return cross_entropy_head(run, x, head().var, options);
}

Tensor Decoder::logits(Run& run, const Tensor& hidden) const {
  RING_CHECK(params_.slice().size == 1, "logits need the whole model in one process, but this is slice ",
             params_.slice().rank, " of ", params_.slice().size);
  const ScopeGuard scope = run.enter({scopes::loss_head});
  const Tensor w = head().var.value.narrow(0, 0, config_.vocab_size);
  Tensor out = run.ctx.empty({hidden.dim(0), config_.vocab_size});
  matmul_kernel({hidden, w, out, false, true}, run.ctx);
  const auto cap = static_cast<float>(config_.logit_soft_cap);
  if (cap > 0) activate_kernel({.x = out, .y = out, .kind = Activation::soft_cap, .cap = cap}, run.ctx);
  return out;
}

}  // namespace ring
