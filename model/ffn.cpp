#include "model/ffn.h"

namespace ring {
namespace {

std::vector<Linear::Output> mlp_outputs(const ModelConfig& c) {
  const float std = weight_std(c, c.width, c.mlp_width, true, false);
  if (is_gated(c.mlp)) return {{"gate", c.mlp_width, std}, {"up", c.mlp_width, std}};
  return {{"up", c.mlp_width, std}};
}

Activation activation_of(Mlp kind) {
  switch (kind) {
    case Mlp::gelu: return Activation::gelu;
    case Mlp::gelu_tanh: return Activation::gelu_tanh;
    default: return Activation::relu2;
  }
}

}  // namespace

FeedForward::FeedForward(const ParamPrefix& at, const ModelConfig& c)
    : kind_(c.mlp),
      in_(at, mlp_outputs(c), c.width, c.biases == Biases::all, Cut::outputs, c.lora),
      out_(at, {{"down", c.width, weight_std(c, c.mlp_width, c.width, true, true)}}, c.mlp_width,
           c.biases == Biases::all, Cut::inputs, c.lora) {
  if (c.norm_place == NormPlace::sub) sub_norm_.emplace(at.child("sub_norm"), c.mlp_width, c);
}

Var FeedForward::operator()(Run& run, const Var& x, const Var& residual) const {
  const auto is_plain = [](const Linear& l) { return !l.weight->format && !l.adapter; };
  if (kind_ == Mlp::gelu_tanh && !sub_norm_ && is_plain(in_) && is_plain(out_)) {
    const auto mlp = [&](const Var& in, const Var& bias, const Var& added) {
      return mlp_gelu_tanh(run, in, in_.weight->var, in_.bias_or_none(), out_.weight->var, bias, added);
    };
    if (!is_tensor_parallel(run)) return mlp(x, out_.bias_or_none(), residual);
    return reduce_scatter_rows(run, mlp(all_gather_rows(run, x), {}, {}), out_.bias_or_none(), residual);
  }
  Var h = in_(run, x);
  if (kind_ == Mlp::swiglu && !sub_norm_) return out_.after_swiglu(run, h, residual);
  if (is_gated(kind_))
    h = swiglu(run, h, kind_ == Mlp::swiglu ? Gate::silu : Gate::gelu_tanh);
  else
    h = activate(run, h, activation_of(kind_));
  if (sub_norm_) h = sub_norm_->normalize_across_tp(run, h);
  return out_(run, h, residual);
}

ParamList FeedForward::parameters() const {
  ParamList all = in_.parameters();
  if (sub_norm_) all += sub_norm_->parameters();
  return all += out_.parameters();
}

std::unique_ptr<FfnLayer> make_feed_forward(const ParamPrefix& at, const ModelConfig& c, std::int64_t) {
  return std::make_unique<FeedForward>(at, c);
}

}  // namespace ring
