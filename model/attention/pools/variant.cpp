// Pools of keys as a variant of attention: their weights and gates, and their rows in a cache.
#include <utility>

#include "core/checked.h"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/attention/pools/gated_decode.h"
#include "kernels/attention/pools/pooled_attention.h"
#include "kernels/attention/pools/weighted_pool.h"
#include "model/attention/pools/settings.h"
#include "model/attention_variant.h"
#include "model/kv_cache.h"
#include "model/layers.h"

namespace ring {
namespace {

// Declares the pooling weights. They are initialized to 0, so that pools begin as means. They are vectors over whole
// heads, so that they get no weight decay (kernels/attention/pools/pooled_attention.h).
Param& add_pooling(const VariantSetup& s) {
  const ModelConfig& c = s.config;
  std::vector<LogicalParam> parts;
  for (const std::int64_t size : s.settings.pools) {
    const ParamPrefix pool = s.at.child(str("pool.", size));
    parts.push_back({pool("positions"), 0, c.kv_heads * size, {}});
    parts.push_back({pool("query"), 0, c.kv_heads * c.head_dim, {}});
  }
  return s.at.params.add(std::move(parts), 0, {.cut = Cut::outputs});
}

class PoolsOfLayer final : public AttentionVariant {
 public:
  explicit PoolsOfLayer(const VariantSetup& s)
      : sizes_{.pools = s.pattern.pools}, kv_heads_(s.config.kv_heads), head_dim_(s.config.head_dim) {
    if (learns_pools(s.settings)) pooling_ = &add_pooling(s);
    if (!s.settings.pool_gates) return;
    // Initialized to 0, which leaves scores unchanged.
    gate_.emplace(s.at, std::vector<Linear::Output>{{"pool_gate", s.config.heads, 0}}, s.config.width, true,
                  Cut::outputs);
    gate_->weight->linear = false;  // too few outputs for a linear format such as FP8
  }

  ParamList parameters() const override {
    ParamList all;
    if (pooling_) all += {pooling_};
    if (gate_) all += gate_->parameters();
    return all;
  }
  Var attend(AttentionLayerCall& call, const std::function<Var()>& attend) const override {
    if (pooling_) call.options.pooling = pooling_->var;
    if (gate_) call.options.pool_gates = (*gate_)(call.run, call.x);
    return attend();
  }
  std::shared_ptr<VariantCache> make_cache(const CacheSetup&) const override;

  // Returns the weights of all heads; empty if pools are means.
  std::vector<PoolWeights> weights() const {
    if (!pooling_) return {};
    return pool_weights(pooling_->var.value, sizes_, kv_heads_, head_dim_);
  }
  // Returns the gates of tokens x [N,C], [N,Hq]; undefined if there are none.
  Tensor gates(Run& run, const Var& x) const { return gate_ ? (*gate_)(run, x).value : Tensor{}; }

 private:
  Pattern sizes_;  // a pattern that has only the sizes of the pools
  std::int64_t kv_heads_, head_dim_;
  Param* pooling_ = nullptr;
  std::optional<Linear> gate_;
};

// The pools of a layer's cache: rows of keys and values after those of all tokens. A layer with pools keeps the rows of
// all tokens.
class PoolsCache final : public VariantCache {
 public:
  PoolsCache(const PoolsOfLayer& layer, const CacheSetup& s) : layer_(layer), token_rows_(s.token_rows) {
    std::int64_t row = s.token_rows;
    for (const std::int32_t size : s.pattern.pools) {
      pools_.push_back({size, narrow<std::int32_t>(row)});
      row += s.capacity / size;
    }
    rows_ = row - s.token_rows;
  }

  std::int64_t extra_rows() const override { return rows_; }
  void append(const LayerCache& cache, const NewTokens& tokens, const Tensor&) override {
    const std::vector<PoolWeights> weights = layer_.weights();
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      const std::vector<PoolSegment> completed = completed_pools(cache, tokens, pools_[i]);
      if (!completed.empty())
        compute_pools(cache, pools_[i], weights.empty() ? nullptr : &weights[i], completed, tokens.run.ctx);
    }
  }
  void add_rows(std::int32_t token, std::vector<CacheRows>& rows) const override {
    for (const Pools& p : pools_)
      if (token >= p.size) rows.push_back({p.first, token / p.size, 1});
  }
  bool decode(const AttentionDecode& args, const NewTokens& tokens) const override {
    const Tensor gates = layer_.gates(tokens.run, tokens.x);
    if (gates.defined()) gated_decode_kernel({args, gates, narrow<std::int32_t>(token_rows_)}, tokens.run.ctx);
    return gates.defined();
  }

 private:
  struct Pools {
    std::int32_t size, first;  // tokens per pool; cache row of pool 0
  };

  static std::vector<PoolSegment> completed_pools(const LayerCache& cache, const NewTokens& tokens, const Pools& p) {
    std::vector<PoolSegment> completed;
    for (std::size_t b = 0; b < tokens.lengths.size(); ++b) {
      const auto row = narrow<std::int32_t>(static_cast<std::int64_t>(b) * cache.keys.dim(1));
      const std::int32_t before = tokens.lengths[b] / p.size, end = tokens.end(b) / p.size;
      if (before < end)
        completed.push_back(
            {.first = row + before * p.size, .count = (end - before) * p.size, .out = row + p.first + before});
    }
    return completed;
  }

  // Computes pools from the cached rows of their tokens: weighted sums, or means if `weights` is null.
  static void compute_pools(const LayerCache& cache, const Pools& p, const PoolWeights* weights,
                            const std::vector<PoolSegment>& completed, const ExecContext& ctx) {
    const auto rows = [](const Tensor& t) { return t.view({t.dim(0) * t.dim(1), t.dim(2), t.dim(3)}); };
    const Tensor k = rows(cache.keys), v = rows(cache.values);
    if (!weights) {
      for (const Tensor& all : {k, v}) block_pool_kernel({all, all, completed, p.size}, ctx);
      return;
    }
    for (PoolSegment r : completed) {
      const std::int64_t first = std::exchange(r.out, 0), count = r.count / p.size;
      weighted_pool_kernel({k,
                            v,
                            v,
                            weights->positions,
                            weights->query,
                            k.narrow(0, first, count),
                            v.narrow(0, first, count),
                            ctx.empty({count, k.dim(1), p.size}),
                            {r}},
                           ctx);
    }
  }

  const PoolsOfLayer& layer_;
  std::int64_t token_rows_, rows_;
  std::vector<Pools> pools_;
};

std::shared_ptr<VariantCache> PoolsOfLayer::make_cache(const CacheSetup& s) const {
  return std::make_shared<PoolsCache>(*this, s);
}

std::string missing_text(std::int64_t tensors, std::int64_t) {
  return str("the weights have no learned pools or gates for some layers (", tensors,
             " tensors). Pools start as means, gates at 0, and both learn in this run");
}

std::string unexpected_text(std::int64_t tensors) {
  return str("the weights have learned pools or gates (", tensors, " tensors) that this run does not use");
}

}  // namespace

const AttentionVariantKind& pools_variant() {
  static const AttentionVariantKind kind{.make = [](const VariantSetup& s) -> std::unique_ptr<AttentionVariant> {
                                           return s.settings.pools.empty() ? nullptr
                                                                           : std::make_unique<PoolsOfLayer>(s);
                                         },
                                         .missing = missing_text,
                                         .unexpected = unexpected_text};
  return kind;
}

}  // namespace ring
