#include "model/layers.h"

#include <algorithm>
#include <cmath>

#include "core/checked.h"
#include "core/counted.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/pools/gated_decode.h"
#include "kernels/norm.h"
#include "model/attention/pools/pools.h"
#include "model/linear_format.h"
#include "model/rope.h"

namespace ring {
namespace {

float score_scale(const ModelConfig& c) {
  const double factor = c.positions == Positions::rope ? rope_attention_factor(c.rope) : 1;
  return static_cast<float>(factor * factor) / std::sqrt(static_cast<float>(c.head_dim));
}

std::vector<Linear::Output> qkv_outputs(const ModelConfig& c) {
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {{"wq", q, weight_std(c, c.width, q, false, false)},
          {"wk", kv, weight_std(c, c.width, kv, false, false)},
          {"wv", kv, weight_std(c, c.width, kv, true, false)}};
}

// Declares the pooling weights. They are initialized to 0, so that pools begin as means. They are vectors over whole
// heads, so that they get no weight decay (kernels/attention/pools/pooled_attention.h).
Param& add_pooling(const ParamPrefix& at, const ModelConfig& c, const AttentionConfig& a) {
  std::vector<LogicalParam> parts;
  for (const std::int64_t size : a.pools) {
    const ParamPrefix pool = at.child(str("pool.", size));
    parts.push_back({pool("positions"), 0, c.kv_heads * size, {}});
    parts.push_back({pool("query"), 0, c.kv_heads * c.head_dim, {}});
  }
  return at.params.add(std::move(parts), 0, {.cut = Cut::outputs});
}

// Allocates the block masses. They start as zeros if ranks share the queries, since several calls then add to them.
Tensor mass_for(const Tensor& scores, const SelectionPart& part, const ExecContext& ctx) {
  return part.shared ? ctx.zeros(scores.shape()) : ctx.empty(scores.shape());
}

}  // namespace

float weight_std(const ModelConfig& c, std::int64_t in, std::int64_t out, bool has_gain, bool writes_residual) {
  const double depth = 2.0 * static_cast<double>(c.layers);
  switch (c.init) {
    case InitScheme::normal: return static_cast<float>(c.init_std);
    case InitScheme::depth_scaled:
      return static_cast<float>(writes_residual ? c.init_std / std::sqrt(depth) : c.init_std);
    case InitScheme::magneto: break;
  }
  const double xavier = std::sqrt(2.0 / static_cast<double>(in + out));
  return static_cast<float>(has_gain ? xavier * std::sqrt(std::log(std::max(depth, 2.0))) : xavier);
}

ParamList& operator+=(ParamList& list, const ParamList& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

Linear::Linear(const ParamPrefix& at, const std::vector<Output>& outputs, std::int64_t in, bool with_bias, Cut cut) {
  std::vector<LogicalParam> weights, biases;
  for (const Output& o : outputs) {
    weights.push_back({at(o.name + ".weight"), 0, o.channels, {Init::Kind::normal, o.std}});
    biases.push_back({at(o.name + ".bias"), 0, o.channels, {}});
  }
  weight = &at.params.add(std::move(weights), in, {.cut = cut});
  weight->linear = true;
  if (with_bias) bias = &at.params.add(std::move(biases), 0, {.cut = cut == Cut::inputs ? Cut::none : cut});
}

Var Linear::operator()(Run& run, const Var& x, const Var& residual) const {
  const LinearFormat* format = weight->format;
  if (!is_tensor_parallel(run)) {
    if (format) return format->apply(run, x, *weight, bias_or_none(), residual);
    return linear(run, x, weight->var, bias_or_none(), residual);
  }
  const Cut cut = weight->placement.cut;
  RING_CHECK(cut != Cut::none, weight->parts[0].name, " is whole in a run of a sliced model");
  if (format && cut == Cut::inputs)
    return reduce_scatter_rows(run, format->apply(run, x, *weight, {}, {}), bias_or_none(), residual);
  if (format) return format->apply(run, all_gather_rows(run, x), *weight, bias_or_none(), residual);
  return (cut == Cut::inputs ? linear_scatter : gather_linear)(run, x, weight->var, bias_or_none(), residual);
}

Var Linear::after_swiglu(Run& run, const Var& gate_up, const Var& residual) const {
  const bool parallel = is_tensor_parallel(run);
  if (!weight->format || (parallel && weight->placement.cut != Cut::inputs))
    return (*this)(run, swiglu(run, gate_up), residual);
  if (!parallel) return weight->format->apply_to_swiglu(run, gate_up, *weight, bias_or_none(), residual);
  return reduce_scatter_rows(run, weight->format->apply_to_swiglu(run, gate_up, *weight, {}, {}), bias_or_none(),
                             residual);
}

ParamList Linear::parameters() const { return bias ? ParamList{weight, bias} : ParamList{weight}; }

Norm::Norm(const ParamPrefix& at, std::int64_t channels, const ModelConfig& c)
    : weight(&at.params.add({{at("weight"), 0, channels, {Init::Kind::ones}}}, 0)),
      kind(c.norm),
      eps(static_cast<float>(c.norm_eps)) {
  if (kind == NormKind::layer && c.biases == Biases::all) bias = &at.params.add({{at("bias"), 0, channels, {}}}, 0);
}

Var Norm::operator()(Run& run, const Var& x) const {
  if (kind == NormKind::rms) return rms_norm(run, x, weight->var, eps);
  return layer_norm(run, x, weight->var, bias ? bias->var : Var{}, eps);
}

Var Norm::normalize_across_tp(Run& run, const Var& x) const {
  if (!is_tensor_parallel(run)) return (*this)(run, x);
  return swap_rows_for_channels(run, (*this)(run, swap_channels_for_rows(run, x)));
}

ParamList Norm::parameters() const { return bias ? ParamList{weight, bias} : ParamList{weight}; }

AttentionLayer::AttentionLayer(const ParamPrefix& at, const ModelConfig& c, const AttentionConfig& settings,
                               const Pattern& pattern, const Tensor& inv_freq, std::uint32_t dropout_site)
    : heads_(c.heads),
      kv_heads_(c.kv_heads),
      head_dim_(c.head_dim),
      pattern_(pattern),
      selecting_(pattern),
      inv_freq_(inv_freq),
      qkv_(at, qkv_outputs(c), c.width, c.biases != Biases::none, Cut::outputs),
      out_(at, {{"wo", c.width, weight_std(c, c.heads * c.head_dim, c.width, true, true)}}, c.heads * c.head_dim,
           c.biases == Biases::all, Cut::inputs),
      scale_(score_scale(c)),
      dropout_(static_cast<float>(c.attention_dropout)),
      dropout_site_(dropout_site),
      eps_(static_cast<float>(c.norm_eps)) {
  if (c.qk_norm) {
    q_norm_ = &at.params.add({{at("q_norm.weight"), 0, head_dim_, {Init::Kind::ones}}}, 0);
    k_norm_ = &at.params.add({{at("k_norm.weight"), 0, head_dim_, {Init::Kind::ones}}}, 0);
  }
  if (c.norm_place == NormPlace::sub) sub_norm_.emplace(at.child("sub_norm"), c.heads * head_dim_, c);
  if (learns_pools(settings)) pooling_ = &add_pooling(at, c, settings);
  // Initialized to 0, which leaves scores unchanged.
  if (settings.pool_gates)
    pool_gate_.emplace(at, std::vector<Linear::Output>{{"pool_gate", c.heads, 0}}, c.width, true, Cut::outputs);
  if (pool_gate_) pool_gate_->weight->linear = false;  // too few outputs for a linear format such as FP8
  if (learns_blocks(settings)) index_.emplace(at.child("index"), c, settings);
}

void AttentionLayer::restrict_to_heads(std::int64_t heads, KvHeads kv_heads, const Pattern& pattern) {
  heads_ = heads;
  kv_heads_ = kv_heads.count;
  pattern_ = selecting_ = pattern;
  if (index_) index_->restrict_to_heads(kv_heads.first, kv_heads.count);
}

bool AttentionLayer::set_step(std::int64_t step) {
  if (!learns()) return false;
  const Pattern before =
      std::exchange(pattern_, step < index_->warmup_steps() ? select_all_blocks(selecting_, kv_heads_) : selecting_);
  return !same_pairs(before, pattern_);
}

void AttentionLayer::set_blocks(Pattern p) {
  p.blocks = std::make_shared<const BlockPattern>(p.blocks->as_successor_of(*pattern_.blocks));
  pattern_ = std::move(p);
}

ParamList AttentionLayer::parameters() const {
  ParamList all = qkv_.parameters();
  if (q_norm_) all += {q_norm_, k_norm_};
  if (sub_norm_) all += sub_norm_->parameters();
  if (index_) all += index_->parameters();
  if (pooling_) all += {pooling_};
  if (pool_gate_) all += pool_gate_->parameters();
  return all += out_.parameters();
}

std::vector<LaterWeights> AttentionLayer::later_weights() const {
  ParamList pools;
  if (pooling_) pools += {pooling_};
  if (pool_gate_) pools += pool_gate_->parameters();
  return {{index_ ? index_->parameters() : ParamList{},
           [](std::int64_t tensors, std::int64_t steps) {
             return str("the weights lack ", tensors, " tensors of indexers, which start to learn now. ",
                        "model.attention.index_warmup_steps gives them time to learn",
                        steps ? str(" if it is more than the ", counted(steps, "step"), " that the run has done") : "");
           },
           [](std::int64_t tensors) {
             return str("the weights have ", tensors, " tensors of indexers that this run does not use");
           }},
          {pools,
           [](std::int64_t tensors, std::int64_t) {
             return str("the weights have no learned pools or gates for some layers (", tensors,
                        " tensors). Pools start as means, gates at 0, and both learn in this run");
           },
           [](std::int64_t tensors) {
             return str("the weights have learned pools or gates (", tensors, " tensors) that this run does not use");
           }}};
}

SelfAttention AttentionLayer::options(bool training) const {
  SelfAttention s;
  s.heads = heads_;
  s.kv_heads = kv_heads_;
  s.head_dim = head_dim_;
  s.attention = {scale_, pattern_, training ? dropout_ : 0, dropout_site_};
  s.inv_freq = inv_freq_;
  if (q_norm_) {
    s.q_norm = q_norm_->var;
    s.k_norm = k_norm_->var;
  }
  s.norm_eps = eps_;
  if (pooling_) s.pooling = pooling_->var;
  return s;
}

std::vector<PoolWeights> AttentionLayer::pool_weights() const {
  if (!pooling_) return {};
  return ring::pool_weights(pooling_->var.value, pattern_, kv_heads_, head_dim_);
}

Var AttentionLayer::project(Run& run, Var y, const Var& residual) const {
  if (sub_norm_) y = sub_norm_->normalize_across_tp(run, y);
  return out_(run, y, residual);
}

Var AttentionLayer::attend(Run& run, const Var& x, const Var& qkv, const Sequences& seqs, BlockSelection* shared,
                           AttendedHeads& heads) const {
  SelfAttention s = options(run.training);
  s.queries = &heads.q, s.keys = &heads.k, s.values = &heads.v;
  s.selection = shared;
  s.watch = make_watch({}, run.ctx);
  if (pool_gate_) s.pool_gates = (*pool_gate_)(run, x);
  if (!index_) return self_attention(run, qkv, seqs, s);
  const SelectionPart part = selection_part(run, seqs, pattern_, kv_heads_);
  // scores() is collective, so ranks whose heads do not select call it, too.
  const Var scores = index_->scores(run, x, seqs, part);
  if (!part.pattern.selects()) return self_attention(run, qkv, seqs, s);
  BlockSelection selection = select_by_scores(scores.value, part.pattern, part.spans, run.ctx);
  const Tensor mass = run.records(scores) ? mass_for(scores.value, part, run.ctx) : Tensor{};
  s.selection = &selection;
  s.watch = make_watch(mass, run.ctx);
  const Var y = self_attention(run, qkv, seqs, s);
  if (mass.defined()) index_->learn(run, scores, mass, selection, seqs, part);
  return y;
}

// Returns a watch that adds block masses to `mass`, if defined, and calls the layer's `watch`, if set. Returns null if
// there is neither.
AttentionWatch AttentionLayer::make_watch(const Tensor& mass, const ExecContext& ctx) const {
  if (!mass.defined() && !watch) return nullptr;
  return [this, mass, &ctx](const PooledAttention& a, KvHeads heads) {
    if (mass.defined()) add_mass(mass, a, heads, ctx);
    if (watch)
      watch({a.q, a.k, a.v, a.lse, a.scale, a.pattern, a.selection, a.queries, heads, a.keys, a.weights, a.gates});
  };
}

Var AttentionLayer::operator()(Run& run, const Var& x, const Sequences& seqs, const Var& residual,
                               BlockSelection* shared) const {
  AttendedHeads heads;
  const Var y = attend(run, x, qkv_(run, x), seqs, shared, heads);
  heads = {};
  return project(run, y, residual);
}

Var AttentionLayer::operator()(Run& run, const Var& x, const Sequences& seqs, const Var& residual,
                               BlockSelection* shared, LayerCache& cache,
                               const std::vector<std::int32_t>& lengths) const {
  const Var qkv = qkv_(run, x);
  for (std::int32_t n : lengths)
    RING_CHECK((n > 0) == (lengths[0] > 0), "a cache where some sequences are empty and others are not");
  if (cache.index) cache.index->append(*index_, x.value, seqs, lengths, run.ctx);
  if (lengths[0] > 0) {
    const Tensor gates = pool_gate_ ? (*pool_gate_)(run, x).value : Tensor{};
    return project(run, {decode(run, qkv.value, gates, seqs, cache, lengths), nullptr}, residual);
  }
  AttendedHeads heads;
  const Var y = attend(run, x, qkv, seqs, shared, heads);
  cache.append(heads.k, heads.v, seqs, lengths, pool_weights(), run.ctx);
  if (cache.selects()) cache.selection->append(heads.q, seqs, lengths, run.ctx);
  return project(run, y, residual);
}

SelectionCache::Scored AttentionLayer::scorer(const LayerCache& cache, const ExecContext& ctx) const {
  if (!cache.index) return nullptr;
  return [&](const std::vector<SelectedRows>& documents) { return cache.index->scores(*index_, documents, ctx); };
}

Tensor AttentionLayer::decode(Run& run, const Tensor& qkv, const Tensor& gates, const Sequences& seqs,
                              LayerCache& cache, const std::vector<std::int32_t>& lengths) const {
  const std::int64_t batch = qkv.dim(0), nq = heads_ * head_dim_, nkv = kv_heads_ * head_dim_;
  Tensor q = qkv.narrow(1, 0, nq).split_dim(1, head_dim_);
  Tensor k = qkv.narrow(1, nq, nkv).split_dim(1, head_dim_);
  const Tensor v = qkv.narrow(1, nq + nkv, nkv).split_dim(1, head_dim_);
  if (q_norm_) {
    const auto normed = [&](const Tensor& x, const Param& w) {
      Tensor y = run.ctx.empty(x.shape(), x.dtype());
      rms_norm_kernel({x, w.var.value, y, run.ctx.empty({x.dim(0) * x.dim(1)}), eps_}, run.ctx);
      return y;
    };
    q = normed(q, *q_norm_);
    k = normed(k, *k_norm_);
  }
  if (inv_freq_.defined())
    for (const Tensor& t : {q, k}) rotate(t, seqs, inv_freq_, run.ctx);
  cache.append(k, v, seqs, lengths, pool_weights(), run.ctx);
  if (cache.selects()) {
    cache.selection->append(q, seqs, lengths, run.ctx);
    cache.selection->select(pattern_, cache.keys, scale_, lengths, scorer(cache, run.ctx), run.ctx);
  }
  const Tensor y = run.ctx.empty({batch, heads_, head_dim_}, qkv.dtype());
  AttentionDecode args{q, cache.keys, cache.values, y, {}, {}, scale_};
  cache.set_key_rows(pattern_, lengths, args);  // the new token is at position lengths[b]
  if (gates.defined())
    gated_decode_kernel({args, gates, narrow<std::int32_t>(cache.rows())}, run.ctx);
  else
    attention_decode_kernel(args, run.ctx);
  return y.view({batch, nq});
}

}  // namespace ring
