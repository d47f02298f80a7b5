#pragma once
// Layers. Each layer declares its parameters below a ParamPrefix, with their placement under tensor parallelism, and is
// called with a Run. The ops do the communication that sharding requires.

#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "model/config.h"
#include "model/params.h"

namespace ring {

// A low-rank adapter of a linear layer: adds scale * dropout(x) A^T B^T to some of the layer's outputs.
struct LowRankAdapter {
  std::vector<std::size_t> outputs;  // indices of the adapted outputs
  Param* a;                          // [outputs * rank, in], stacked by output
  Param* b;                          // [channels of the outputs, rank], stacked by output
  float scale, dropout;
  std::uint32_t dropout_site;
};

// y = x w^T + b. Several outputs may share one GEMM: their weights are then one parameter with several parts.
struct Linear {
  struct Output {
    std::string name;
    std::int64_t channels;
    float std;  // standard deviation of the initial weights
  };
  // cut: how the weight is sharded. Cut::outputs shards the bias as well; with Cut::inputs the bias is replicated, and
  // added once to the sum over the processes. lora: resolved; the outputs that it targets get an adapter.
  Linear(const ParamPrefix&, const std::vector<Output>&, std::int64_t in, bool bias, Cut cut = Cut::none,
         const LoraConfig& lora = {});
  // Maps x [N,in] to [N,out]. Under tensor parallelism shapes depend on the cut:
  //   outputs, parts (column-parallel)   x [N/tp,in], whose rows are gathered first -> [N,out/tp]
  //   inputs (row-parallel)              x [N,in/tp] -> this process's rows of the sum over processes, [N/tp,out]
  Var operator()(Run&, const Var& x, const Var& residual = {}) const;
  // Same for x = swiglu(gate_up), which the layer's format may compute directly in the type of its GEMM operands.
  Var after_swiglu(Run&, const Var& gate_up, const Var& residual) const;
  Var bias_or_none() const { return bias ? bias->var : Var{}; }
  ParamList parameters() const;

  Param* weight;
  Param* bias = nullptr;
  std::optional<LowRankAdapter> adapter;

 private:
  Var apply_base(Run&, const Var& x, const Var& residual) const;
  // Returns the adapter's output + residual.
  Var apply_adapter(Run&, const Var& x, const Var& residual) const;
};

// Returns the standard deviation of a matrix's initial weights (model.init). has_gain: true for matrices that the
// MAGNETO scheme scales (values, attention output, MLP). writes_residual: true for matrices that write to the residual
// stream.
float weight_std(const ModelConfig&, std::int64_t in, std::int64_t out, bool has_gain, bool writes_residual);

// Return the initial value of norm weights, and the offset that norms add to them (model.norm_zero_centered).
Init norm_init(const ModelConfig&);
float norm_offset(const ModelConfig&);

struct Norm {
  Norm(const ParamPrefix&, std::int64_t channels, const ModelConfig&);
  Var operator()(Run& run, const Var& x) const;
  // Normalizes over all channels, even if the run is sliced and x [N,C/tp] holds a share of them: swaps channels for
  // rows and back.
  Var normalize_across_tp(Run& run, const Var& x) const;
  ParamList parameters() const;

  Param* weight;
  Param* bias = nullptr;
  NormKind kind;
  float eps, w_offset;
};

}  // namespace ring
