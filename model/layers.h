#pragma once
// Typed layers: each declares its parameters below a ParamPrefix, with their placement under tensor parallelism, and is
// called with a Run. The ops do the communication that sharding requires.

#include <functional>
#include <optional>

#include "autograd/ops.h"
#include "model/attended_heads.h"
#include "model/config.h"
#include "model/indexer.h"
#include "model/kv_cache.h"
#include "model/later_weights.h"
#include "model/params.h"

namespace ring {

// y = x w^T + b. Several outputs may share one GEMM: their weights are then one parameter with several parts.
struct Linear {
  struct Output {
    std::string name;
    std::int64_t channels;
    float std;  // standard deviation of the initial weights
  };
  // cut: how the weight is sharded. Cut::outputs shards the bias as well; with Cut::inputs the bias is replicated, and
  // added once to the sum over the processes.
  Linear(const ParamPrefix&, const std::vector<Output>&, std::int64_t in, bool bias, Cut cut = Cut::none);
  // Maps x [N,in] to [N,out]. Under tensor parallelism shapes depend on the cut:
  //   outputs, parts (column-parallel)   x [N/tp,in], whose rows are gathered first -> [N,out/tp]
  //   inputs (row-parallel)              x [N,in/tp] -> this process's rows of the sum over processes, [N/tp,out]
  Var operator()(Run&, const Var& x, const Var& residual = {}) const;
  // The same for x = swiglu(gate_up), which the layer's format may compute in the type of its operands.
  Var after_swiglu(Run&, const Var& gate_up, const Var& residual) const;
  Var bias_or_none() const { return bias ? bias->var : Var{}; }
  ParamList parameters() const;

  Param* weight;
  Param* bias = nullptr;
};

// Returns the standard deviation of a matrix's initial weights (model.init). has_gain: true for matrices that the
// MAGNETO scheme scales (values, attention output, MLP). writes_residual: true for matrices that write to the residual
// stream.
float weight_std(const ModelConfig&, std::int64_t in, std::int64_t out, bool has_gain, bool writes_residual);

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
  float eps;
};

class AttentionLayer {
 public:
  // pattern: the pattern made from `settings`. dropout_site: site of the dropout masks on attention weights.
  AttentionLayer(const ParamPrefix&, const ModelConfig& resolved, const AttentionConfig& settings, const Pattern&,
                 const Tensor& inv_freq, std::uint32_t dropout_site);
  // Returns attention(x) + residual, [N,C]; residual may be none. shared: the block selection that a group of layers
  // shares and the group's first layer makes; null if the layer is in no group.
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, BlockSelection* shared) const;
  // Like the overload above, with a cache whose sequences hold lengths[b] tokens: either all 0 with any number of new
  // tokens, or one new token each.
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, BlockSelection* shared, LayerCache&,
                 const std::vector<std::int32_t>& lengths) const;
  ParamList parameters() const;
  // Returns the same kinds in the same order for all layers; the entry of a kind that a layer lacks is empty.
  std::vector<LaterWeights> later_weights() const;

  // Restricts the layer to the query and KV heads of its tensor-parallel slice. The pattern is for these heads.
  void restrict_to_heads(std::int64_t heads, KvHeads, const Pattern&);
  // Sets the pattern of the layer's heads, which set_step() replaces during the indexer's warm-up.
  void set_pattern(const Pattern& pattern) { pattern_ = selecting_ = pattern; }
  // Changes the blocks that the heads attend over, from the next forward on. The pattern must have the same heads.
  void set_blocks(Pattern);
  // Makes the next forward attend as in this step of a run, counted from 0. Before the first call the layer attends as
  // after the last step. Returns true if this changes the next forward.
  bool set_step(std::int64_t step);
  // Returns true if the layer chooses its blocks in each forward, now or once the indexer's warm-up has ended.
  bool selects() const { return selecting_.selects(); }
  Param* pooling() const { return pooling_; }  // weights of learned pools; null if there are none
  Linear* pool_gate() { return pool_gate_ ? &*pool_gate_ : nullptr; }
  const Indexer* indexer() const { return index_ ? &*index_ : nullptr; }
  Linear& qkv() { return qkv_; }
  Linear& out() { return out_; }
  // Called during each forward over whole sequences with the inputs of attention: once, or for groups of heads and
  // parts of the queries (AttentionWatch).
  std::function<void(const AttendedHeads&)> watch;

 private:
  Var attend(Run&, const Var& x, const Var& qkv, const Sequences&, BlockSelection* shared, AttendedHeads&) const;
  AttentionWatch make_watch(const Tensor& mass, const ExecContext&) const;
  SelfAttention options(bool training) const;
  Var project(Run&, Var y, const Var& residual) const;
  SelectionCache::Scored scorer(const LayerCache&, const ExecContext&) const;
  std::vector<PoolWeights> pool_weights() const;  // weights for all heads of this slice; empty if pools are means
  bool learns() const { return index_ && pattern_.selects(); }
  Tensor decode(Run&, const Tensor& qkv, const Tensor& gates, const Sequences&, LayerCache&,
                const std::vector<std::int32_t>& lengths) const;

  std::int64_t heads_, kv_heads_, head_dim_;  // heads of this slice
  Pattern pattern_, selecting_;               // current pattern, and the pattern after the indexer's warm-up
  const Tensor& inv_freq_;                    // owned by the decoder; undefined if there is no rotation
  Linear qkv_;
  Param* q_norm_ = nullptr;
  Param* k_norm_ = nullptr;
  Param* pooling_ = nullptr;
  std::optional<Linear> pool_gate_;
  std::optional<Indexer> index_;
  std::optional<Norm> sub_norm_;
  Linear out_;
  float scale_;    // factor on the scores
  float dropout_;  // dropout rate on attention weights
  std::uint32_t dropout_site_;
  float eps_;
};

}  // namespace ring
