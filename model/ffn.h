#pragma once
// The feed-forward layer of a block: the interface, and the MLP with one hidden layer (model.mlp, model.mlp_width).

#include <functional>
#include <memory>
#include <optional>

#include "model/layers.h"

namespace ring {

class FfnLayer {
 public:
  virtual ~FfnLayer() = default;
  // Returns f(x) [N,C] + residual for x [N,C]; residual [N,C] may be none. Treats every row independently. In a sliced
  // run x and the result have this process's rows, [N/tp,C].
  virtual Var operator()(Run&, const Var& x, const Var& residual) const = 0;
  virtual ParamList parameters() const = 0;
};

class FeedForward final : public FfnLayer {
 public:
  FeedForward(const ParamPrefix&, const ModelConfig& resolved);
  Var operator()(Run&, const Var& x, const Var& residual) const override;
  ParamList parameters() const override;

 private:
  Mlp kind_;
  Linear in_;
  std::optional<Norm> sub_norm_;
  Linear out_;
};

// Creates the feed-forward layer of a block and declares its parameters below the prefix.
using MakeFfn =
    std::function<std::unique_ptr<FfnLayer>(const ParamPrefix&, const ModelConfig& resolved, std::int64_t layer)>;
std::unique_ptr<FfnLayer> make_feed_forward(const ParamPrefix&, const ModelConfig& resolved, std::int64_t layer);

}  // namespace ring
