#include "model/attention/selected/selected_blocks_cache.h"

namespace ring {

void SelectedBlocksCache::append(const LayerCache&, const NewTokens& tokens, const Tensor& q) {
  selection_.append(q, tokens.seqs, tokens.lengths, tokens.run.ctx);
}

void SelectedBlocksCache::prepare(const LayerCache& cache, const Pattern& pattern, float scale,
                                  const NewTokens& tokens) {
  const ExecContext& ctx = tokens.run.ctx;
  selection_.select(pattern, cache.keys, scale, tokens.lengths, scorer(ctx), ctx);
}

bool SelectedBlocksCache::add_keys(std::size_t b, std::int32_t kv_head, std::int32_t token,
                                   std::vector<KeyRun>& runs) const {
  const auto keeps = [&](std::int32_t block) { return selection_.is_selected(b, kv_head, block); };
  add_kept_blocks(selection_.block(), token + 1, keeps, runs);
  return true;
}

}  // namespace ring
