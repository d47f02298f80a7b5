#include "model/linear_formats.h"

#include <fnmatch.h>

#include <algorithm>

#include "autograd/fp8_linear.h"
#include "kernels/fp8.h"
#include "model/fp8_encoding.h"
#include "model/model.h"

namespace ring {
namespace {

constexpr std::int64_t kAlign = 16;  // elements; rows of FP8 operands start at multiples of 16 bytes

// Returns how many of the `n` rows or columns each process holds, if `cut` is the cut that shards them.
std::int64_t local(std::int64_t n, const Param& p, Cut cut, int slices) {
  return p.placement.cut == cut ? n / slices : n;
}

class Fp8Format final : public LinearFormat {
 public:
  explicit Fp8Format(bool tensorwise)
      : tensorwise_(tensorwise), encoding_(tensorwise ? Fp8Blocks::tensor : Fp8Blocks::squares) {}

  Var apply(Run& run, const Var& x, const Param& weight, const Var& bias, const Var& residual) const override {
    return compute(run, x, weight, bias, residual, options(run, weight));
  }
  Var apply_to_swiglu(Run& run, const Var& gate_up, const Param& weight, const Var& bias,
                      const Var& residual) const override {
    Fp8Linear f = options(run, weight);
    f.swiglu = true;
    f.fp8_gate_up = fp8_gate_up_;
    return compute(run, gate_up, weight, bias, residual, f);
  }

  bool round_swiglu_inputs() override { return fp8_gate_up_ = true; }

  std::string misfit(const Param& p, int slices) const override {
    const std::string per = slices > 1 ? str(" per process (parallel.tp: ", slices, ")") : "";
    const auto wrong = [&](std::int64_t n, const char* what, std::int64_t multiple) {
      return n % multiple ? str("has ", n, what, per, ", expected a multiple of ", multiple) : "";
    };
    const std::int64_t columns = local(p.shape[1], p, Cut::inputs, slices);
    std::int64_t rows = local(p.shape[0], p, Cut::outputs, slices);
    rows = local(rows, p, Cut::parts, slices);
    if (std::string text = wrong(columns, " inputs", kAlign); !text.empty()) return text;
    if (std::string text = wrong(rows, " outputs", kAlign); !text.empty()) return text;
    // Block-wise scales: if a shard consists of whole blocks, its scales equal those of the unsharded matrix.
    if (tensorwise_ || slices == 1 || p.placement.cut == Cut::none) return "";
    if (p.placement.cut == Cut::inputs) return wrong(columns, " inputs", kFp8Block);
    for (const LogicalParam& part : p.parts)
      if (std::string text = wrong(local(part.whole[0], p, Cut::outputs, slices), " outputs", kFp8Block); !text.empty())
        return (part.name == p.parts[0].name ? "" : "with " + part.name + " ") + text;
    return "";
  }

  void check_device(const ExecContext& ctx) const override {
    if (ctx.stream.device().backend != Backend::cuda) return;
    if (ctx.precision != Precision::bf16)
      fail("train.linears: on GPUs, FP8 needs train.precision: bf16. Set that, or train.linears: bf16");
    if (!ctx.stream.impl().computes()) return;
    const auto operand = [&](Fp8Blocks blocks) {
      return empty_fp8(kFp8Block, kFp8Block, tensorwise_ ? Fp8Blocks::tensor : blocks, ctx, Lifetime::run);
    };
    const Tensor y = ctx.empty({kFp8Block, kFp8Block}, DType::bf16, Lifetime::run);
    const MatmulFp8 product{operand(Fp8Blocks::rows), operand(Fp8Blocks::squares), y};
    if (std::ranges::none_of(matmul_fp8_kernel.candidates(Backend::cuda),
                             [&](const auto& c) { return !c.supports || c.supports(product, ctx); }))
      fail("train.linears: ", ctx.stream.device(), " has no kernels for ", tensorwise_ ? "fp8_tensor" : "fp8_blocks",
           ", which need a Hopper GPU. Set train.linears: bf16");
  }

  void hold_weights(bool hold) override {
    holds_ = hold;
    held_.clear();
  }
  const WeightEncoding* encoding() const override { return &encoding_; }

 private:
  Fp8Linear options(const Run& run, const Param& weight) const {
    Fp8Linear f{.tensorwise = tensorwise_};
    const Cut cut = weight.placement.cut;
    if (is_tensor_parallel(run) && cut != Cut::none) {
      f.tp = run.layout.tp;
      f.shards = Fp8Shards::weight | (cut == Cut::inputs ? Fp8Shards::input : Fp8Shards::output);
    }
    const Tensor& value = weight.var.value;
    if (value.dtype() == DType::u8)
      f.gathered = &(gathered_[&weight] = encoding_.matrix(weight, value));
    else if (holds_)
      f.weight = &held_[&weight];
    return f;
  }
  static Var compute(Run& run, const Var& x, const Param& weight, const Var& bias, const Var& residual,
                     const Fp8Linear& f) {
    Var w = weight.var;
    if (f.gathered) w.value = f.gathered->values;
    return fp8_linear(run, x, w, bias, residual, f);
  }

  bool tensorwise_, fp8_gate_up_ = false, holds_ = false;
  Fp8Encoding encoding_;
  mutable std::map<const Param*, Fp8Copies> held_;
  mutable std::map<const Param*, Fp8Matrix> gathered_;  // views of the encoded weights
};

bool names(const std::string& pattern, const Param& p) {
  return std::ranges::any_of(
      p.parts, [&](const LogicalParam& part) { return fnmatch(pattern.c_str(), part.name.c_str(), 0) == 0; });
}

// Returns why SwiGLU's inputs cannot be rounded, such as "requires model.mlp: swiglu"; empty if they can. weights: the
// weights that get a format. slices: the number of processes of tensor parallelism.
std::string swiglu_inputs_misfit(const ModelConfig& c, const std::vector<Param*>& weights, int slices) {
  if (c.mlp != Mlp::swiglu) return "requires model.mlp: swiglu";
  if (c.norm_place == NormPlace::sub)
    return "requires a model.norm_place other than sub, which normalizes SwiGLU's output";
  if (std::ranges::none_of(weights, [](const Param* p) { return names("*.down.weight", *p); }))
    return "requires a layer `down` that train.linears_except does not name";
  if (c.lora.adapts("down"))
    return "requires that `down` has no adapter, which reads SwiGLU's output (model.lora.targets)";
  if (c.mlp_width % (slices * kFp8Block))
    return str("requires model.mlp_width to be a multiple of ", kFp8Block,
               slices > 1 ? str(" x ", slices, " (parallel.tp)") : "", ", got ", c.mlp_width);
  return "";
}

}  // namespace

Var LinearFormat::apply_to_swiglu(Run& run, const Var& gate_up, const Param& weight, const Var& bias,
                                  const Var& residual) const {
  return apply(run, swiglu(run, gate_up), weight, bias, residual);
}

std::map<std::string, MakeLinearFormat>& linear_formats() {
  static std::map<std::string, MakeLinearFormat> all = {
      {"fp8_blocks", [](Model&) { return std::make_unique<Fp8Format>(false); }},
      {"fp8_tensor", [](Model&) { return std::make_unique<Fp8Format>(true); }}};
  return all;
}

void bind_linears(Model& model, const LinearsConfig& c, int slices, std::vector<SettingProblem>& errors) {
  std::vector<Param*> weights = model.parameters().declared();
  std::erase_if(weights, [](const Param* p) { return !p->linear; });
  const std::vector<Param*> all = weights;
  for (std::size_t i = 0; i < c.except.size(); ++i) {
    const auto is_named = [&](const Param* p) { return names(c.except[i], *p); };
    if (std::ranges::none_of(all, is_named))
      errors.push_back(
          str("train.linears_except[", i, "]: \"", c.except[i], "\" matches no linear layer of the blocks"));
    std::erase_if(weights, is_named);
  }
  const auto made = linear_formats().find(c.format);
  std::unique_ptr<LinearFormat> format = made == linear_formats().end() ? nullptr : made->second(model);
  if (c.fp8_swiglu_inputs) {
    const std::string problem = format && format->round_swiglu_inputs()
                                    ? swiglu_inputs_misfit(model.config(), weights, slices)
                                    : "requires train.linears: fp8_blocks or fp8_tensor, got " + c.format;
    if (!problem.empty())
      errors.push_back("train.swiglu_inputs: fp8 " + problem + ". Change that, or leave train.swiglu_inputs out");
  }
  if (!format) return;
  for (Param* p : weights) {
    const std::string problem = format->misfit(*p, slices);
    if (!problem.empty()) {
      errors.push_back(str("train.linears: ", c.format, ": ", p->parts[0].name, " ", problem,
                           ". Name the weight in train.linears_except, or change its shape"));
      break;
    }
    p->format = format.get();
    p->encoded = c.encode_frozen && p->is_frozen() && format->encoding();
  }
  model.set_linear_format(std::move(format));
}

const WeightEncoding* encoding_of(const Param& p) { return p.format ? p.format->encoding() : nullptr; }

void bind_linears(Model& model, const LinearsConfig& c, int slices) {
  std::vector<SettingProblem> errors;
  bind_linears(model, c, slices, errors);
  if (!errors.empty()) fail(errors[0].text);
}

}  // namespace ring
