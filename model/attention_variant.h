#pragma once
// Variants of attention: parts of a layer besides dense attention over the pairs of its pattern, such as pools of keys,
// or an indexer that selects blocks. A layer has the variants that its settings section asks for, and may have several.
// To add a variant, add a folder beside model/attention/pools and two lines in attention_variants.cpp (docs/extend.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "model/config.h"
#include "model/params.h"

namespace ring {

class Model;
class TrainingState;
class VariantCache;
struct CacheSetup;

// Results that the layers of one forward share. If backward recomputes segments, it uses the blocks that the forward
// selected, so this must live until then.
struct ForwardPass {
  explicit ForwardPass(std::size_t layers) : selections(layers) {}
  std::vector<BlockSelection> selections;  // by layer; each is set by the first layer of a group that shares it
};

// One call of a layer's attention.
struct AttentionLayerCall {
  Run& run;
  const Var& x;  // the layer's input, [N/tp,C]
  const Sequences& seqs;
  ForwardPass& pass;
  SelfAttention options;  // arguments of self_attention(), which computes the call
};

// The part that a variant adds to one layer.
class AttentionVariant {
 public:
  AttentionVariant() = default;
  virtual ~AttentionVariant() = default;
  AttentionVariant(const AttentionVariant&) = delete;
  AttentionVariant& operator=(const AttentionVariant&) = delete;

  virtual ParamList parameters() const { return {}; }
  // Restricts the part to the KV heads of a tensor-parallel slice.
  virtual void restrict_to_heads(KvHeads) {}
  // Returns the pattern of a step of a run, counted from 0; nullopt if it is `pattern`, the layer's own, in every step.
  virtual std::optional<Pattern> pattern_at(std::int64_t /*step*/, const Pattern& /*pattern*/) const { return {}; }
  // Returns attend(), the output of the layer's heads. May change the call's options before and use results after it.
  virtual Var attend(AttentionLayerCall&, const std::function<Var()>& attend) const { return attend(); }
  // Returns the metric name of the loss that attend() adds to Probes::auxiliary_loss; empty if there is none.
  virtual std::string auxiliary_loss() const { return ""; }
  // Returns the part of the layer's cache; null if there is none. It must not outlive this object.
  virtual std::shared_ptr<VariantCache> make_cache(const CacheSetup&) const { return nullptr; }
};

// Arguments to make a variant of a layer.
struct VariantSetup {
  const ParamPrefix& at;  // the layer's parameters
  const ModelConfig& config;
  std::int64_t layer;
  const AttentionConfig& settings;  // the layer's section
  const Pattern& pattern;           // the section's pattern, for all heads
};

struct AttentionVariantKind {
  // Creates the variant's part of a layer. Returns null if the layer's section does not use it. May itself be null.
  std::unique_ptr<AttentionVariant> (*make)(const VariantSetup&) = nullptr;
  // Creates the state that training changes besides the parameters. patterns: one per layer, for all heads. The model
  // must outlive the state. May itself be null.
  std::unique_ptr<TrainingState> (*make_state)(Model&, const std::vector<Pattern>& patterns) = nullptr;
  // Return the log messages for weights that a run starts or stops using (LaterWeights). Both are null if the variant
  // has no weights.
  std::string (*missing)(std::int64_t tensors, std::int64_t steps) = nullptr;
  std::string (*unexpected)(std::int64_t tensors) = nullptr;
};

// Returns the variants, which outlive all models. Their order is that of their parameters. Programs may add some before
// they make models.
std::vector<const AttentionVariantKind*>& attention_variants();

}  // namespace ring
