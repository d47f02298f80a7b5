#include "model/attention/importance/importance.h"

#include <algorithm>
#include <numeric>

#include "core/checked.h"
#include "core/philox.h"
#include "kernels/attention/blocks.h"
#include "model/attention/block_patterns.h"

namespace ring {
namespace {

bool measured(const BlockRuleConfig& r) { return block_pattern_of(r).chooser == BlockChooser::masses; }

}  // namespace

bool uses_importance(const AttentionConfig& c, std::int64_t kv_heads) {
  for (std::int64_t h = 0; c.kind == "block_sparse" && h < kv_heads; ++h)
    if (measured(rule_of_head(c, h))) return true;
  return false;
}

BlockImportance::BlockImportance(const AttentionConfig& c, const Pattern& start, const ModelSizes& sizes,
                                 std::int64_t layer)
    : layer_(layer), distances_((sizes.context - 1) / start.blocks->block() + 1), start_(start) {
  const Stream host = Stream::cpu(1);
  averages_ = Tensor::empty({sizes.kv_heads, distances_}, DType::f32, host, Lifetime::run);
  scores_ = Tensor::empty({sizes.kv_heads, distances_}, DType::f32, host, Lifetime::run);
  for (std::int64_t h = 0; h < sizes.kv_heads; ++h) {
    const BlockRuleConfig& r = rule_of_head(c, h);
    Head& head = heads_.emplace_back();
    if (!measured(r)) continue;
    head = {.local = narrow<std::int32_t>(r.local),
            .first = narrow<std::int32_t>(r.first),
            .keep = narrow<std::int32_t>(r.keep),
            .explore = narrow<std::int32_t>(r.explore),
            .interval = r.interval,
            .decay = r.decay,
            .seed = r.seed};
  }
  reset();
}

void BlockImportance::reset() {
  for (std::size_t head = 0; head < heads_.size(); ++head)
    for (std::int64_t d = 0; d < distances_; ++d) {
      row(averages_, head)[d] = -1;
      row(scores_, head)[d] = static_cast<float>(-d);
    }
}

bool BlockImportance::measures_before(std::int64_t step) const {
  return std::ranges::any_of(heads_, [&](const Head& h) { return h.keep > 0 && step % h.measured_every() == 0; });
}

// Updates the moving averages of a head. The first measurement of a distance becomes its average.
void BlockImportance::update_head_averages(std::size_t head, const MeasuredMass& m) {
  float* const of = row(averages_, head);
  for (std::int64_t d = 0; d < distances_; ++d) {
    const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(head) * distances_ + d);
    if (m.rows[at] == 0) continue;
    const double now = m.sums[at] / m.rows[at], decay = of[d] < 0 ? 0 : heads_[head].decay;
    of[d] = static_cast<float>(decay * of[d] + (1 - decay) * now);
  }
}

// Chooses the distances with the largest averages, and `explore` random
// ones among the others. The random ones get the highest scores.
void BlockImportance::choose_blocks_of_head(std::size_t head, std::int64_t step) {
  const Head& h = heads_[head];
  float *const averages = row(averages_, head), *const scores = row(scores_, head);
  for (std::int64_t d = 0; d < distances_; ++d) scores[d] = averages[d] < 0 ? static_cast<float>(-1 - d) : averages[d];
  std::vector<std::int32_t> far(static_cast<std::size_t>(std::max<std::int64_t>(0, distances_ - h.local)));
  std::iota(far.begin(), far.end(), h.local);
  std::ranges::stable_sort(far, [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  const auto best = static_cast<std::size_t>(h.keep - h.local - h.first - h.explore);
  if (far.size() <= best) return;
  far.erase(far.begin(), far.begin() + static_cast<std::ptrdiff_t>(best));
  const RandomSite site{
      .seed = h.seed, .step = static_cast<std::uint32_t>(step), .site = site_of(str("importance.", layer_, ".", head))};
  for (std::int32_t i = 0; i < h.explore && !far.empty(); ++i) {
    const auto chosen = static_cast<std::ptrdiff_t>(random_bits(site, static_cast<std::uint64_t>(i)) % far.size());
    scores[far[static_cast<std::size_t>(chosen)]] = 2;  // more than any mass
    far.erase(far.begin() + chosen);
  }
}

void BlockImportance::update_averages(std::int64_t step, const MeasuredMass& m) {
  for (std::size_t head = 0; head < heads_.size(); ++head)
    if (heads_[head].keep > 0 && step % heads_[head].measured_every() == 0) update_head_averages(head, m);
}

bool BlockImportance::choose_blocks(std::int64_t step) {
  bool changed = false;
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    if (heads_[head].keep == 0 || step % heads_[head].interval != 0) continue;
    choose_blocks_of_head(head, step);
    changed = true;
  }
  return changed;
}

// Sets the bits of the kept blocks: query block i sees itself, the local and the first blocks, then the other distances
// by score, until it sees `keep` blocks.
void BlockImportance::draw_bits(std::size_t head, std::uint32_t* bits, std::int64_t words) const {
  const Head& h = heads_[head];
  const float* const scores = row(scores_, head);
  std::vector<std::int32_t> far(static_cast<std::size_t>(std::max<std::int64_t>(0, distances_ - h.local)));
  std::iota(far.begin(), far.end(), h.local);
  std::ranges::stable_sort(far, [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  for (std::int32_t i = 0; i < distances_; ++i) {
    std::uint32_t* const to = bits + i * words;
    const auto keep = [&](std::int32_t k) { to[k / 32] |= 1u << (k % 32); };
    std::int32_t room = h.keep;
    for (std::int32_t k = 0; k <= i; ++k)
      if (k < h.first || i - k < h.local) keep(k), --room;
    for (std::size_t at = 0; at < far.size() && room > 0; ++at)
      if (i - far[at] >= h.first) keep(i - far[at]), --room;
  }
}

Pattern BlockImportance::pattern() const {
  const std::int64_t words = (distances_ + 31) / 32;
  std::vector<std::uint32_t> bits = start_.blocks->bits();
  std::vector<BlockRule> rules;
  std::vector<std::int32_t> of_head;
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    of_head.push_back(static_cast<std::int32_t>(head));
    rules.push_back(start_.blocks->rule(static_cast<std::int32_t>(head)));
    if (heads_[head].keep == 0) continue;
    const auto first = static_cast<std::int64_t>(bits.size());
    bits.resize(bits.size() + static_cast<std::size_t>(distances_ * words));
    draw_bits(head, bits.data() + first, words);
    rules.back() = {.kind = BlockRuleKind::drawn,
                    .first_word = first,
                    .rows = narrow<std::int32_t>(distances_),
                    .words = narrow<std::int32_t>(words)};
  }
  Pattern p = start_;
  p.blocks = std::make_shared<const BlockPattern>(start_.blocks->block(), std::move(rules), std::move(of_head),
                                                  std::move(bits));
  return p;
}

std::vector<std::int32_t> BlockImportance::num_start_blocks() const {
  std::vector<std::int32_t> all;
  for (const Head& h : heads_) all.push_back(h.first);
  return all;
}

}  // namespace ring
