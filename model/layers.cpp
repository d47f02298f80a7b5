#include "model/layers.h"

#include <algorithm>
#include <cmath>

#include "autograd/block_linear.h"
#include "core/philox.h"
#include "model/linear_format.h"

namespace ring {

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

namespace {

// Declares the adapter of the outputs that `lora` targets; returns nullopt if it targets none. A is initially uniform
// and B zero, as in PEFT, so that a new adapter changes nothing. Under tensor parallelism, A is sharded like the inputs
// of the weight, and B like its outputs.
std::optional<LowRankAdapter> make_adapter(const ParamPrefix& at, const std::vector<Linear::Output>& outputs,
                                           std::int64_t in, Cut cut, const LoraConfig& lora) {
  LowRankAdapter l{.dropout = static_cast<float>(lora.dropout)};
  std::vector<LogicalParam> a, b;
  const float bound = 1 / std::sqrt(static_cast<float>(in));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Linear::Output& o = outputs[i];
    if (!lora.adapts(o.name)) continue;
    l.outputs.push_back(i);
    a.push_back(
        {at(o.name + ".lora_a.weight"), 0, lora.rank, {.kind = Init::Kind::uniform, .low = -bound, .high = bound}});
    b.push_back({at(o.name + ".lora_b.weight"), 0, o.channels, {}});
  }
  if (a.empty()) return std::nullopt;
  RING_CHECK(cut != Cut::parts, "an adapter for ", a[0].name, ", whose layer is sharded by parts");
  l.dropout_site = site_of(a[0].name);
  l.scale = static_cast<float>(lora.scale());
  l.a = &at.params.add(std::move(a), in, {.cut = cut == Cut::inputs ? cut : Cut::none});
  l.b = &at.params.add(std::move(b), lora.rank, {.cut = cut == Cut::outputs ? cut : Cut::none});
  l.a->adapter = l.b->adapter = true;
  return l;
}

}  // namespace

Linear::Linear(const ParamPrefix& at, const std::vector<Output>& outputs, std::int64_t in, bool with_bias, Cut cut,
               const LoraConfig& lora) {
  std::vector<LogicalParam> weights, biases;
  for (const Output& o : outputs) {
    weights.push_back({at(o.name + ".weight"), 0, o.channels, {Init::Kind::normal, o.std}});
    biases.push_back({at(o.name + ".bias"), 0, o.channels, {}});
  }
  weight = &at.params.add(std::move(weights), in, {.cut = cut});
  weight->linear = true;
  if (with_bias) bias = &at.params.add(std::move(biases), 0, {.cut = cut == Cut::inputs ? Cut::none : cut});
  adapter = make_adapter(at, outputs, in, cut, lora);
}

// The adapter's output is the residual of the base layer's GEMM, which adds it without another pass over memory.
Var Linear::operator()(Run& run, const Var& x, const Var& residual) const {
  return apply_base(run, x, adapter ? apply_adapter(run, x, residual) : residual);
}

// Under tensor parallelism, processes exchange the products with A, which are narrower than inputs and outputs.
Var Linear::apply_adapter(Run& run, const Var& x, const Var& residual) const {
  const Var in = run.training ? dropout_add(run, x, {}, adapter->dropout, adapter->dropout_site) : x;
  Var h = scale(run, linear(run, in, adapter->a->var), adapter->scale);
  if (is_tensor_parallel(run))
    h = weight->placement.cut == Cut::inputs ? reduce_scatter_rows(run, h) : all_gather_rows(run, h);
  std::vector<OutputBlock> blocks;
  for (const std::size_t i : adapter->outputs) blocks.push_back({weight->parts[i].first_row, weight->parts[i].rows});
  return block_linear(run, h, adapter->b->var, blocks, weight->shape[0], residual);
}

Var Linear::apply_base(Run& run, const Var& x, const Var& residual) const {
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
  if (adapter || !weight->format || (parallel && weight->placement.cut != Cut::inputs))
    return (*this)(run, swiglu(run, gate_up), residual);
  if (!parallel) return weight->format->apply_to_swiglu(run, gate_up, *weight, bias_or_none(), residual);
  return reduce_scatter_rows(run, weight->format->apply_to_swiglu(run, gate_up, *weight, {}, {}), bias_or_none(),
                             residual);
}

ParamList Linear::parameters() const {
  ParamList all{weight};
  if (bias) all += {bias};
  if (adapter) all += {adapter->a, adapter->b};
  return all;
}

Init norm_init(const ModelConfig& c) { return {c.norm_zero_centered ? Init::Kind::zeros : Init::Kind::ones}; }
float norm_offset(const ModelConfig& c) { return c.norm_zero_centered ? 1.0f : 0.0f; }

Norm::Norm(const ParamPrefix& at, std::int64_t channels, const ModelConfig& c)
    : weight(&at.params.add({{at("weight"), 0, channels, norm_init(c)}}, 0)),
      kind(c.norm),
      eps(static_cast<float>(c.norm_eps)),
      w_offset(norm_offset(c)) {
  if (kind == NormKind::layer && c.biases == Biases::all) bias = &at.params.add({{at("bias"), 0, channels, {}}}, 0);
}

Var Norm::operator()(Run& run, const Var& x) const {
  if (kind == NormKind::rms) return rms_norm(run, x, weight->var, eps, w_offset);
  return layer_norm(run, x, weight->var, bias ? bias->var : Var{}, eps);
}

Var Norm::normalize_across_tp(Run& run, const Var& x) const {
  if (!is_tensor_parallel(run)) return (*this)(run, x);
  return swap_rows_for_channels(run, (*this)(run, swap_channels_for_rows(run, x)));
}

ParamList Norm::parameters() const { return bias ? ParamList{weight, bias} : ParamList{weight}; }

}  // namespace ring
