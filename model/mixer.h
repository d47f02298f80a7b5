#pragma once
// The layer of a block that mixes tokens: attention, or a layer with a state, such as a gated delta net
// (model.mixers).

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "autograd/ops.h"
#include "model/attention_variant.h"
#include "model/kv_cache.h"
#include "model/params.h"

namespace ring {

class AttentionLayer;

class MixerLayer {
 public:
  MixerLayer() = default;
  virtual ~MixerLayer() = default;
  MixerLayer(const MixerLayer&) = delete;
  MixerLayer& operator=(const MixerLayer&) = delete;

  // Returns mixed(x) + residual, [N,C], or mixed(x) without a residual. In a sliced run, x and the result have this
  // process's rows, [N/tp,C].
  virtual Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, ForwardPass&) const = 0;
  // Like the overload above, with a cache whose sequences hold lengths[b] tokens: either all 0 with any number of new
  // tokens, or one new token each.
  virtual Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, ForwardPass&, LayerCache&,
                         const std::vector<std::int32_t>& lengths) const = 0;
  // Returns an empty cache for `batch` sequences of at most `capacity` tokens. before: the caches of earlier layers.
  // Throws Error if the layer does not support this type of cache.
  virtual LayerCache make_cache(std::int64_t batch, std::int64_t capacity, std::span<const LayerCache> before,
                                const ExecContext&, KvCacheType) const = 0;
  virtual ParamList parameters() const = 0;
  virtual AttentionLayer* attention() { return nullptr; }  // this layer, if it is attention
  // Restricts the layer to this rank's heads under tensor parallelism. Does nothing in attention layers, for which
  // AttentionLayer::restrict_to_heads() is called instead.
  virtual void restrict_to_slices(std::int64_t /*slices*/) {}
};

}  // namespace ring
