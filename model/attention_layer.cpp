#include "model/attention_layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/blocks.h"
#include "kernels/attention/seen_keys.h"
#include "kernels/norm.h"
#include "model/patterns.h"
#include "model/rope.h"

namespace ring {
namespace {

float score_scale(const ModelConfig& c, std::int64_t layer) {
  const RopeConfig& rope = *ropes_of(c)[static_cast<std::size_t>(layer)];
  const double factor = c.positions == Positions::rope ? rope_attention_factor(rope) : 1;
  if (c.attention_scale > 0) return static_cast<float>(factor * factor * c.attention_scale);
  return static_cast<float>(factor * factor) / std::sqrt(static_cast<float>(c.head_dim));
}

std::vector<Linear::Output> qkv_outputs(const ModelConfig& c) {
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {{"wq", q, weight_std(c, c.width, q, false, false)},
          {"wk", kv, weight_std(c, c.width, kv, false, false)},
          {"wv", kv, weight_std(c, c.width, kv, true, false)}};
}

// Returns a watch that passes a layer's attention calls to `show`; null if `show` is empty.
AttentionWatch watch_of(const std::function<void(const AttendedHeads&)>& show) {
  if (!show) return nullptr;
  return [&show](const PooledAttention& call, KvHeads heads) {
    const auto& [a, p] = call;
    show({a.q, a.k, a.v, a.lse, a.scale, a.pattern, a.selection, a.queries, heads, a.keys, p.weights, p.gates});
  };
}

}  // namespace

AttentionLayer::AttentionLayer(const ParamPrefix& at, const ModelConfig& c, std::int64_t layer, const Pattern& pattern,
                               const Tensor& inv_freq, std::uint32_t dropout_site)
    : layer_(layer),
      heads_(c.heads),
      kv_heads_(c.kv_heads),
      head_dim_(c.head_dim),
      pattern_(pattern),
      own_pattern_(pattern),
      inv_freq_(inv_freq),
      qkv_(at, qkv_outputs(c), c.width, c.biases != Biases::none, Cut::outputs, c.lora),
      out_(at, {{"wo", c.width, weight_std(c, c.heads * c.head_dim, c.width, true, true)}}, c.heads * c.head_dim,
           c.biases == Biases::all, Cut::inputs, c.lora),
      scale_(score_scale(c, layer)),
      dropout_(static_cast<float>(c.attention_dropout)),
      dropout_site_(dropout_site),
      eps_(static_cast<float>(c.norm_eps)),
      norm_offset_(norm_offset(c)),
      soft_cap_(static_cast<float>(c.attention_soft_cap)) {
  if (c.qk_norm) {
    const bool whole = c.qk_norm_over == QkNormOver::projection;
    const std::int64_t q = whole ? heads_ * head_dim_ : head_dim_, k = whole ? kv_heads_ * head_dim_ : head_dim_;
    q_norm_ = &at.params.add({{at("q_norm.weight"), 0, q, norm_init(c)}}, 0);
    k_norm_ = &at.params.add({{at("k_norm.weight"), 0, k, norm_init(c)}}, 0);
  }
  const Init normal{Init::Kind::normal, static_cast<float>(c.init_std)};
  if (c.learned_sinks) sinks_ = &at.params.add({{at("sinks"), 0, c.heads, normal}}, 0, {.cut = Cut::outputs});
  if (c.attention_output_gate) {
    const std::int64_t q = heads_ * head_dim_;
    gate_.emplace(at, std::vector<Linear::Output>{{"wg", q, weight_std(c, c.width, q, false, false)}}, c.width,
                  c.biases != Biases::none, Cut::outputs);
  }
  if (c.norm_place == NormPlace::sub) sub_norm_.emplace(at.child("sub_norm"), c.heads * head_dim_, c);
  const VariantSetup setup{at, c, layer, attention_of(c, layer), pattern};
  for (const AttentionVariantKind* kind : attention_variants())
    if (auto part = kind->make ? kind->make(setup) : nullptr) variants_.push_back({kind, std::move(part)});
}

void AttentionLayer::restrict_to_heads(std::int64_t heads, KvHeads kv_heads, const Pattern& pattern) {
  heads_ = heads;
  kv_heads_ = kv_heads.count;
  set_pattern(pattern);
  for (const Variant& v : variants_) v.part->restrict_to_heads(kv_heads);
}

bool AttentionLayer::set_step(std::int64_t step) {
  std::optional<Pattern> next;
  for (const Variant& v : variants_)
    if (std::optional<Pattern> pattern = v.part->pattern_at(step, own_pattern_)) {
      RING_CHECK(!next, "several variants of attention in a layer change its pattern by steps");
      next = std::move(pattern);
    }
  if (!next) return false;
  const Pattern before = std::exchange(pattern_, *std::move(next));
  return !same_pairs(before, pattern_);
}

void AttentionLayer::set_blocks(Pattern p) {
  p.blocks = std::make_shared<const BlockPattern>(p.blocks->as_successor_of(*pattern_.blocks));
  pattern_ = std::move(p);
}

ParamList AttentionLayer::parameters() const {
  ParamList all = qkv_.parameters();
  if (q_norm_) all += {q_norm_, k_norm_};
  if (sinks_) all += {sinks_};
  if (gate_) all += gate_->parameters();
  if (sub_norm_) all += sub_norm_->parameters();
  for (const Variant& v : variants_) all += v.part->parameters();
  return all += out_.parameters();
}

ParamList AttentionLayer::parameters_of(const AttentionVariantKind& kind) const {
  const auto found = std::ranges::find(variants_, &kind, &Variant::kind);
  return found == variants_.end() ? ParamList{} : found->part->parameters();
}

std::string AttentionLayer::auxiliary_loss() const {
  for (const Variant& v : variants_)
    if (std::string name = v.part->auxiliary_loss(); !name.empty()) return name;
  return "";
}

SelfAttention AttentionLayer::options(bool training, Qkv& final) const {
  SelfAttention s;
  s.layer = layer_;
  s.heads = heads_;
  s.kv_heads = kv_heads_;
  s.head_dim = head_dim_;
  s.attention = {scale_, soft_cap_, pattern_, training ? dropout_ : 0, dropout_site_};
  s.inv_freq = inv_freq_;
  if (q_norm_) {
    s.q_norm = q_norm_->var;
    s.k_norm = k_norm_->var;
  }
  if (sinks_) s.sinks = sinks_->var;
  s.norm_eps = eps_, s.norm_offset = norm_offset_;
  s.queries = &final.q, s.keys = &final.k, s.values = &final.v;
  s.watch = watch_of(watch);
  return s;
}

Var AttentionLayer::project(Run& run, const Var& x, Var y, const Var& residual) const {
  if (gate_) y = sigmoid_gate(run, y, (*gate_)(run, x));
  if (sub_norm_) y = sub_norm_->normalize_across_tp(run, y);
  return out_(run, y, residual);
}

Var AttentionLayer::attend(AttentionLayerCall&& call, const Var& qkv, std::size_t first) const {
  if (first == variants_.size()) return self_attention(call.run, qkv, call.seqs, call.options);
  return variants_[first].part->attend(call, [&] { return attend(std::move(call), qkv, first + 1); });
}

Var AttentionLayer::operator()(Run& run, const Var& x, const Sequences& seqs, const Var& residual,
                               ForwardPass& pass) const {
  Qkv final;
  const Var y = attend({run, x, seqs, pass, options(run.training, final)}, qkv_(run, x));
  final = {};
  return project(run, x, y, residual);
}

Var AttentionLayer::operator()(Run& run, const Var& x, const Sequences& seqs, const Var& residual, ForwardPass& pass,
                               LayerCache& cache, const std::vector<std::int32_t>& lengths) const {
  const Var qkv = qkv_(run, x);
  for (std::int32_t n : lengths)
    RING_CHECK((n > 0) == (lengths[0] > 0), "a cache where some sequences are empty and others are not");
  const NewTokens tokens{run, x, seqs, lengths};
  if (lengths[0] > 0) return project(run, x, {decode(qkv.value, tokens, cache), nullptr}, residual);
  Qkv final;
  const Var y = attend({run, x, seqs, pass, options(run.training, final)}, qkv);
  cache.append(tokens, final.q, final.k, final.v);
  return project(run, x, y, residual);
}

Tensor AttentionLayer::decode(const Tensor& qkv, const NewTokens& tokens, const LayerCache& cache) const {
  const ExecContext& ctx = tokens.run.ctx;
  const std::int64_t batch = qkv.dim(0), nq = heads_ * head_dim_, nkv = kv_heads_ * head_dim_;
  Tensor q = qkv.narrow(1, 0, nq).split_dim(1, head_dim_);
  Tensor k = qkv.narrow(1, nq, nkv).split_dim(1, head_dim_);
  const Tensor v = qkv.narrow(1, nq + nkv, nkv).split_dim(1, head_dim_);
  if (q_norm_) {
    const auto normed = [&](std::int64_t first, std::int64_t width, const Param& w) {
      const Tensor x = qkv.narrow(1, first, width).split_dim(1, w.var.value.numel());
      const Tensor y = ctx.empty(x.shape(), x.dtype());
      rms_norm_kernel({x, w.var.value, y, ctx.empty({x.dim(0) * x.dim(1)}), eps_, norm_offset_}, ctx);
      return y.view({batch, -1, head_dim_});
    };
    q = normed(0, nq, *q_norm_);
    k = normed(nq, nkv, *k_norm_);
  }
  if (inv_freq_.defined())
    for (const Tensor& t : {q, k}) rotate(t, tokens.seqs, inv_freq_, ctx);
  cache.append(tokens, q, k, v);
  const Tensor y = ctx.empty({batch, heads_, head_dim_}, qkv.dtype());
  cache.decode(pattern_,
               {.q = q,
                .k = {},
                .v = {},
                .out = y,
                .rows = {},
                .starts = {},
                .scale = scale_,
                .soft_cap = soft_cap_,
                .sinks = sinks_ ? sinks_->var.value : Tensor{}},
               tokens);
  return y.view({batch, nq});
}

LayerCache AttentionLayer::make_cache(std::int64_t batch, std::int64_t capacity, std::span<const LayerCache> before,
                                      const ExecContext& ctx, KvCacheType type) const {
  const bool fp8 = type == KvCacheType::fp8;
  const std::optional<std::int64_t> reach = SeenKeys(own_pattern_).max_needed_keys();
  const std::int64_t rows = reach ? std::min(capacity, own_pattern_.sinks + *reach) : capacity;
  LayerCache cache{.sinks = std::min<std::int64_t>(own_pattern_.sinks, rows), .token_rows = rows};
  const CacheSetup setup{batch, capacity, heads_, kv_heads_, head_dim_, rows, own_pattern_, before, ctx};
  std::int64_t extra = 0;
  for (const Variant& v : variants_)
    if (auto part = v.part->make_cache(setup)) {
      RING_CHECK(extra == 0 || part->extra_rows() == 0, "several variants of attention have rows in a cache");
      if (fp8 && part->uses_keys())
        fail("a KV cache in FP8 is not possible for layers that compute with cached keys themselves");
      extra += part->extra_rows();
      cache.variants.push_back(std::move(part));
    }
  const Shape shape{batch, rows + extra, kv_heads_, head_dim_};
  const DType stored = fp8 ? DType::u8 : activation_type(ctx.precision);
  for (Tensor* t : {&cache.keys, &cache.values}) *t = ctx.empty(shape, stored, Lifetime::run);
  if (!fp8) return cache;
  for (Tensor* t : {&cache.key_scales, &cache.value_scales})
    *t = ctx.empty({batch, rows + extra, kv_heads_}, DType::u8, Lifetime::run);
  return cache;
}

}  // namespace ring
