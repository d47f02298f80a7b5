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

// Writes the mean over rows [first, end) of x, summed over `heads` heads from `head` on.
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

void set(std::uint32_t* bits, std::int32_t k) { bits[k / 32] |= 1u << (k % 32); }

struct Scored {
  float score;
  std::int32_t block;
};
bool better(const Scored& a, const Scored& b) { return a.score != b.score ? a.score > b.score : a.block < b.block; }

// Returns the length of the shortest prefix of `best` whose share of the softmax over `all` is at least `mass`; if
// there is none, returns the length of `best`. `best` has the highest scores of `all`, highest first.
std::size_t reaching(float mass, float scale, std::span<const Scored> best, std::span<const Scored> all) {
  const float largest = best.front().score;
  const auto weight = [=](const Scored& c) {  // compares scores first, because inf - inf is NaN
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
    if (args.scores.defined()) return of(args.scores, document.bits + block)[j];
    return dot(of(args.queries, document.queries + block - 1), of(args.keys, document.keys + j), args.keys.dim(2));
  }
  std::vector<Scored> candidates(const BlockRule& rule) const {
    std::vector<Scored> all;
    for (std::int32_t j = rule.first; j <= block - rule.local; ++j)
      if (const float s = score(j); !std::isnan(s)) all.push_back({s, j});
    return all;
  }
  void select(const BlockRule& rule, std::uint32_t* bits) const {
    std::int32_t room = rule.keep;
    for (std::int32_t k = 0; k <= block; ++k)
      if (k < rule.first || block - k < rule.local) set(bits, k), --room;
    const std::vector<Scored> all = candidates(rule);
    std::vector<Scored> best(std::min(static_cast<std::size_t>(room), all.size()));
    std::partial_sort_copy(all.begin(), all.end(), best.begin(), best.end(), better);
    if (rule.mass < 1 && !best.empty()) best.resize(reaching(rule.mass, args.scale, best, all));
    for (const Scored& chosen : best) set(bits, chosen.block);
  }
  void run() const {
    const std::int64_t words = args.bits.dim(2), row = std::int64_t{document.bits} + block;
    auto* bits = reinterpret_cast<std::uint32_t*>(args.bits.raw()) + (row * args.bits.dim(1) + head) * words;
    std::fill_n(bits, words, 0u);
    const BlockRule& rule = args.blocks->rule(head);
    if (rule.kind == BlockRuleKind::content) return select(rule, bits);
    for (std::int32_t k = 0; k <= block; ++k)
      if (rule.keeps(head, block, k)) set(bits, k);
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
    for (std::int32_t head = 0; head < a.bits.dim(1); ++head) Row{a, *t.document, t.block, head}.run();
  });
}

const bool added[] = {block_pool_kernel.add(Backend::cpu, {"blocks", run_pool}),
                      block_select_kernel.add(Backend::cpu, {"rows", run_select})};

}  // namespace
}  // namespace ring::cpu
