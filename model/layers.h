#pragma once
// Typed layers: each declares its parameters below a ParamPrefix, with their placement under tensor parallelism, and is
// called with a Run. The ops exchange what a cut makes the processes exchange.

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

// y = x w^T + b. Several outputs may be read by one product: their weights are then one parameter with several parts.
struct Linear {
  struct Output {
    std::string name;
    std::int64_t channels;
    float std;  // of the initial weights
  };
  // cut: of the weight. With Cut::outputs the bias is cut as well; with Cut::inputs it is whole, and added once to the
  // sum over the processes.
  Linear(const ParamPrefix&, const std::vector<Output>&, std::int64_t in, bool bias, Cut cut = Cut::none);
  // x [N,in] -> [N,out]. In a sliced run, Cut::outputs or Cut::parts (column-parallel): x [N/tp,in], whose rows are
  // gathered -> [N,out/tp]; Cut::inputs (row-parallel): x [N,in/tp] -> this process's rows of the sum, [N/tp,out].
  Var operator()(Run&, const Var& x, const Var& residual = {}) const;
  Var bias_or_none() const { return bias ? bias->var : Var{}; }
  ParamList parameters() const;

  Param* weight;
  Param* bias = nullptr;
};

// Returns the standard deviation of a matrix's initial weights (model.init). gain: MAGNETO scales it, as it does
// values, outputs and MLPs; output: the matrix writes to the residual stream.
float weight_std(const ModelConfig&, std::int64_t in, std::int64_t out, bool gain, bool output);

struct Norm {
  Norm(const ParamPrefix&, std::int64_t channels, const ModelConfig&);
  Var operator()(Run& run, const Var& x) const;
  // Sees all channels where the run is sliced and x [N,C/tp] holds a share of them: rows are swapped for channels and
  // back.
  Var over_slices(Run& run, const Var& x) const;
  ParamList parameters() const;

  Param* weight;
  Param* bias = nullptr;
  NormKind kind;
  float eps;
};

class AttentionLayer {
 public:
  // The pattern is that of `settings`. dropout_site: of the masks on weights.
  AttentionLayer(const ParamPrefix&, const ModelConfig& resolved, const AttentionConfig& settings, const Pattern&,
                 const Tensor& inv_freq, std::uint32_t dropout_site);
  // [N,C] -> [N,C], plus residual, which may be none. shared: the selection of the layers that share theirs, which the
  // first of them makes; null: nobody shares.
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, BlockSelection* shared) const;
  // The same with a cache whose sequences hold lengths[b] tokens: all 0 and any number of new ones, or one new one
  // each.
  Var operator()(Run&, const Var& x, const Sequences&, const Var& residual, BlockSelection* shared, LayerCache&,
                 const std::vector<std::int32_t>& lengths) const;
  ParamList parameters() const;
  // Returns the same kinds in the same order for all layers; one that a layer does not have is empty.
  std::vector<LaterWeights> later_weights() const;

  // Computes these heads alone from now on: those of a slice, with what they attend over.
  void take_heads(std::int64_t heads, KvHeads, const Pattern&);
  // A pattern of the heads that it computes; attend_as_in_step goes by it.
  void set_pattern(const Pattern& pattern) { pattern_ = selecting_ = pattern; }
  void change_blocks(Pattern);  // attends over these from the next pass on, with the same heads
  // From the next pass on it attends as in this step (counted from 0) of a run; until then, as after its last. Returns
  // whether that is another way than before.
  bool attend_as_in_step(std::int64_t step);
  // Which blocks it keeps is chosen in each pass, if not yet in this step.
  bool selects() const { return selecting_.selects(); }
  Param* pooling() const { return pooling_; }  // what learned pools are made with; null: there are none
  Linear* pool_gate() { return pool_gate_ ? &*pool_gate_ : nullptr; }
  const Indexer* indexer() const { return index_ ? &*index_ : nullptr; }
  Linear& qkv() { return qkv_; }
  Linear& out() { return out_; }
  // Called with what each pass over whole sequences attends over, where it runs: once, or for groups of the heads and
  // parts of the queries (AttentionWatch).
  std::function<void(const AttendedHeads&)> watch;

 private:
  Var attend(Run&, const Var& x, const Var& qkv, const Sequences&, BlockSelection* shared, AttendedHeads&) const;
  AttentionWatch watching(const Tensor& mass, const ExecContext&) const;
  SelfAttention options(bool training) const;
  Var project(Run&, Var y, const Var& residual) const;
  SelectionCache::Scored scorer(const LayerCache&, const ExecContext&) const;
  std::vector<PoolWeights> pool_weights() const;  // of all heads that it computes; none: pools are means
  bool learns() const { return index_ && pattern_.selects(); }
  Tensor decode(Run&, const Tensor& qkv, const Tensor& gates, const Sequences&, LayerCache&,
                const std::vector<std::int32_t>& lengths) const;

  std::int64_t heads_, kv_heads_, head_dim_;  // heads: of this slice
  Pattern pattern_, selecting_;               // as it attends now, and once its indexer has warmed up
  const Tensor& inv_freq_;                    // owned by the decoder; undefined: no rotation
  Linear qkv_;
  Param* q_norm_ = nullptr;
  Param* k_norm_ = nullptr;
  Param* pooling_ = nullptr;
  std::optional<Linear> pool_gate_;
  std::optional<Indexer> index_;
  std::optional<Norm> sub_norm_;
  Linear out_;
  float scale_;    // of scores
  float dropout_;  // rate on weights
  std::uint32_t dropout_site_;
  float eps_;
};

}  // namespace ring
