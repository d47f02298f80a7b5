// Blocks selected by an indexer as a variant of attention.
#include <limits>
#include <utility>

#include "core/counted.h"
#include "kernels/attention/blocks.h"
#include "model/attention/learned/index_cache.h"
#include "model/attention/learned/indexer.h"
#include "model/attention/selected/selected_blocks_cache.h"
#include "model/attention_variant.h"

namespace ring {
namespace {

// Returns the pattern during the indexer's warm-up: heads with selected blocks keep all blocks.
Pattern select_all_blocks(const Pattern& pattern, std::int64_t kv_heads) {
  std::vector<BlockRule> rules;
  std::vector<std::int32_t> of_head;
  for (std::int32_t h = 0; h < kv_heads; ++h) {
    rules.push_back(pattern.blocks->rule(h));
    if (rules.back().kind == BlockRuleKind::content)
      rules.back().keep = std::numeric_limits<std::int32_t>::max(), rules.back().mass = 1;
    of_head.push_back(h);
  }
  Pattern all = pattern;
  all.blocks = std::make_shared<const BlockPattern>(pattern.blocks->block(), std::move(rules), std::move(of_head),
                                                    pattern.blocks->bits(), pattern.blocks->generation() + 1);
  return all;
}

// The block masses of a layer's attention. They are allocated after the first attention call, so that they do not take
// memory at the same time as that call's lists.
struct Masses {
  Tensor all;

  // Returns the masses. They start as zeros if ranks share the queries, since several calls then add to them.
  const Tensor& get(const Tensor& scores, const SelectionPart& part, const ExecContext& ctx) {
    if (!all.defined()) all = part.shared ? ctx.zeros(scores.shape()) : ctx.empty(scores.shape());
    return all;
  }
};

// The cache of a layer with an indexer, which scores the blocks.
class LearnedBlocksCache final : public SelectedBlocksCache {
 public:
  LearnedBlocksCache(const Indexer& indexer, const CacheSetup& s)
      : SelectedBlocksCache(s), indexer_(indexer), index_(s.batch, s.capacity, s.pattern.blocks->block()) {}

  bool uses_keys() const override { return false; }  // scorer() computes the scores from the tokens
  void append(const LayerCache& cache, const NewTokens& tokens, const Tensor& q) override {
    index_.append(indexer_, tokens.x.value, tokens.seqs, tokens.lengths, tokens.run.ctx);
    SelectedBlocksCache::append(cache, tokens, q);
  }

 protected:
  SelectionCache::Scored scorer(const ExecContext& ctx) const override {
    return [this, &ctx](const std::vector<SelectedRows>& documents) { return index_.scores(indexer_, documents, ctx); };
  }

 private:
  const Indexer& indexer_;
  IndexCache index_;
};

class LearnedBlocksOfLayer final : public AttentionVariant {
 public:
  explicit LearnedBlocksOfLayer(const VariantSetup& s)
      : indexer_(s.at.child("index"), s.config, s.settings), kv_heads_(s.config.kv_heads) {}

  ParamList parameters() const override { return indexer_.parameters(); }
  void restrict_to_heads(KvHeads heads) override {
    kv_heads_ = heads.count;
    indexer_.restrict_to_heads(heads.first, heads.count);
  }
  std::optional<Pattern> pattern_at(std::int64_t step, const Pattern& pattern) const override {
    if (!pattern.selects()) return std::nullopt;
    return step < indexer_.warmup_steps() ? select_all_blocks(pattern, kv_heads_) : pattern;
  }
  std::string auxiliary_loss() const override { return "index_loss"; }
  std::shared_ptr<VariantCache> make_cache(const CacheSetup& s) const override {
    return s.pattern.selects() ? std::make_shared<LearnedBlocksCache>(indexer_, s) : nullptr;
  }

  Var attend(AttentionLayerCall& call, const std::function<Var()>& attend) const override {
    Run& run = call.run;
    const SelectionPart part = selection_part(run, call.seqs, call.options.attention.pattern, kv_heads_);
    // select() is collective, so ranks whose heads do not select call it, too.
    auto [scores, selection] = indexer_.select(run, call.x, call.seqs, part, call.options.layer);
    if (!part.pattern.selects()) return attend();
    const bool learns = run.records(scores);
    Masses masses;
    const AttentionWatch next = call.options.watch;
    call.options.selection = &selection;
    if (learns)
      call.options.watch = [&masses, &part, &next, &ctx = run.ctx, like = scores.value](const PooledAttention& a,
                                                                                        KvHeads heads) {
        add_mass(masses.get(like, part, ctx), a.pairs, heads, part.chunk.has_value(), ctx);
        if (next) next(a, heads);
      };
    const Var y = attend();
    call.options.selection = nullptr, call.options.watch = next;
    if (learns) indexer_.learn(run, scores, masses.get(scores.value, part, run.ctx), selection, call.seqs, part);
    return y;
  }

 private:
  Indexer indexer_;
  std::int64_t kv_heads_;  // KV heads of this slice
};

std::string missing_text(std::int64_t tensors, std::int64_t steps) {
  return str("the weights lack ", tensors, " tensors of indexers, which start to learn now. ",
             "model.attention.index_warmup_steps gives them time to learn",
             steps ? str(" if it is more than the ", counted(steps, "step"), " that the run has done") : "");
}

std::string unexpected_text(std::int64_t tensors) {
  return str("the weights have ", tensors, " tensors of indexers that this run does not use");
}

}  // namespace

const AttentionVariantKind& learned_variant() {
  static const AttentionVariantKind kind{.make = [](const VariantSetup& s) -> std::unique_ptr<AttentionVariant> {
                                           return learns_blocks(s.settings) ? std::make_unique<LearnedBlocksOfLayer>(s)
                                                                            : nullptr;
                                         },
                                         .missing = missing_text,
                                         .unexpected = unexpected_text};
  return kind;
}

}  // namespace ring
