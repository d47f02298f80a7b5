// Selection by content. Each task selects for one query block.

#include "kernels/attention/selected/block_select.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/attention/cpu/common.h"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

// Writes the mean over rows [first, end) of x, summed over the `heads` heads from `head` on.
void mean(const Heads& x, std::int64_t first, std::int64_t end, std::int64_t head, std::int64_t heads, float* out) {
  std::fill_n(out, x.dim, 0.0f);
  for (std::int64_t n = first; n < end; ++n)
    for (std::int64_t h = head; h < head + heads; ++h) {
      const float* row = x.at(n, h);
      for (std::int64_t i = 0; i < x.dim; ++i) out[i] += row[i];
    }
  const float share = 1 / static_cast<float>(end - first);
  for (std::int64_t i = 0; i < x.dim; ++i) out[i] *= share;
}

void run_pool(const BlockPool& a, const ExecContext& ctx) {
  check(a);
  const Heads x = heads_of(a.x);
  const std::int64_t groups = a.out.dim(1), heads = x.heads / groups;
  for (const PoolSegment& r : a.rows)
    ctx.stream.pool().parallel_for(r.blocks(a.block) * groups, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t block = i / groups, group = i % groups, start = block * a.block - r.leading_gap;
        mean(x, r.first + std::max<std::int64_t>(0, start), r.first + std::min<std::int64_t>(r.count, start + a.block),
             group * heads, heads, a.out.data<float>() + ((r.out + block) * groups + group) * x.dim);
      }
    });
}

struct Scored {
  float score;
  std::int32_t block;
};
bool better(const Scored& a, const Scored& b) { return a.score != b.score ? a.score > b.score : a.block < b.block; }

// Returns the length of the shortest prefix of `best` whose share of the softmax over `all` is at least `mass`; the
// length of `best` if there is no such prefix. `best` holds the highest scores of `all`, highest first.
std::size_t reaching(float mass, float scale, std::span<const Scored> best, std::span<const Scored> all) {
  const float largest = best.front().score;
  const auto weight = [=](const Scored& c) {  // tests equality first, because inf - inf is NaN
    return c.score == largest ? 1.0f : std::exp(scale * (c.score - largest));
  };
  const float target =
      mass * sum_of(std::ssize(all), [&](std::int64_t i) { return weight(all[static_cast<std::size_t>(i)]); });
  float sum = 0;
  std::size_t count = 0;
  while (count < best.size() && sum < target) sum += weight(best[count++]);
  return count;
}

// One query block and head. Candidates are the blocks j with rule.first <= j <= block - rule.local.
struct Row {
  const BlockSelect& args;
  const SelectedRows& document;
  std::int32_t block, head;

  const float* of(const Tensor& t, std::int32_t row) const {
    return t.data<float>() + (std::int64_t{row} * t.dim(1) + head) * t.dim(2);
  }
  float score(std::int32_t j) const {
    if (args.scores.defined()) return of(args.scores, document.kept + block)[j];
    return dot(of(args.queries, document.queries + block - 1), of(args.keys, document.keys + j), args.keys.dim(2));
  }
  std::vector<Scored> candidates(const BlockRule& rule) const {
    std::vector<Scored> all;
    for (std::int32_t j = rule.first; j <= block - rule.local; ++j)
      if (const float s = score(j); !std::isnan(s)) all.push_back({s, j});
    return all;
  }
  // Appends the blocks that a content rule keeps, in any order.
  void select(const BlockRule& rule, std::vector<std::int32_t>& kept) const {
    for (std::int32_t k = 0; k <= block; ++k)
      if (k < rule.first || block - k < rule.local) kept.push_back(k);
    const std::size_t room = static_cast<std::size_t>(rule.keep) - kept.size();
    const std::vector<Scored> all = candidates(rule);
    std::vector<Scored> best(std::min(room, all.size()));
    std::partial_sort_copy(all.begin(), all.end(), best.begin(), best.end(), better);
    if (rule.mass < 1 && !best.empty()) best.resize(reaching(rule.mass, args.scale, best, all));
    for (const Scored& chosen : best) kept.push_back(chosen.block);
    std::ranges::sort(kept);
  }
  void run() const {
    const std::int64_t room = args.kept.dim(2);
    const std::int64_t at = ((std::int64_t{document.kept} + block) * args.kept.dim(1) + head) * room;
    std::vector<std::int32_t> kept;
    const BlockRule& rule = args.blocks->rule(head);
    if (rule.kind == BlockRuleKind::content) select(rule, kept);
    for (std::int32_t k = 0; rule.kind != BlockRuleKind::content && k <= block; ++k)
      if (rule.keeps(head, block, k)) kept.push_back(k);
    kept.resize(static_cast<std::size_t>(room), kNoBlock);
    std::ranges::copy(kept, args.kept.data<std::int32_t>() + at);
    if (!args.kept_scores.defined()) return;
    const float* const scores = of(args.scores, document.kept + block);
    for (std::int64_t n = 0; n < room; ++n) {
      const std::int32_t k = kept[static_cast<std::size_t>(n)];
      args.kept_scores.data<float>()[at + n] = k == kNoBlock ? 0 : scores[k];
    }
  }
};

struct Task {
  const SelectedRows* document;
  std::int32_t block;
  std::int64_t cost;
};

void run_select(const BlockSelect& a, const ExecContext& ctx) {
  check(a);
  std::vector<Task> tasks;
  for (const SelectedRows& d : a.documents)
    for (std::int32_t i = d.begin; i < d.end; ++i) tasks.push_back({&d, i, i});
  share_out(std::move(tasks), ctx.stream.pool(), [&](const Task& t, int) {
    for (std::int32_t head = 0; head < a.kept.dim(1); ++head) Row{a, *t.document, t.block, head}.run();
  });
}

const bool added[] = {block_pool_kernel.add(Backend::cpu, {"blocks", run_pool}),
                      block_select_kernel.add(Backend::cpu, {"rows", run_select})};

}  // namespace
}  // namespace ring::cpu
