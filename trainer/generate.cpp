#include "trainer/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/philox.h"

namespace ring {
namespace {

// The ids that may be drawn, likeliest first, with their probabilities (not normalised).
struct Candidates {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
};

Candidates candidates_of(std::span<const float> logits, const Sampling& s) {
  Candidates c;
  c.ids.resize(logits.size());
  std::iota(c.ids.begin(), c.ids.end(), 0);
  // Ties by id, so that the order is the same everywhere.
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  std::size_t keep = c.ids.size();
  if (s.top_k > 0) keep = std::min(keep, static_cast<std::size_t>(s.top_k));
  std::partial_sort(c.ids.begin(), c.ids.begin() + static_cast<std::ptrdiff_t>(keep), c.ids.end(), likelier);
  c.ids.resize(keep);
  const double top = logits[static_cast<std::size_t>(c.ids[0])];
  for (std::int32_t id : c.ids)
    c.weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - top) / s.temperature));
  const double total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < c.weights.size(); ++i) {
    sum += c.weights[i];
    if (sum < s.top_p * total) continue;
    c.ids.resize(i + 1);
    c.weights.resize(i + 1);
    break;
  }
  return c;
}

// Feeds tokens and returns the logits after the last one.
std::vector<float> feed(const Decoder& model, const ExecContext& ctx, const std::vector<std::int32_t>& ids,
                        KvCache& cache) {
  Run run{ctx};
  const std::int64_t n = static_cast<std::int64_t>(ids.size());
  const Sequences seqs = Sequences::uniform(1, n, ctx, cache.lengths[0]);
  const Var h = model.hidden(run, from_host(ids, ctx.stream), seqs, cache);
  return to_host<float>(model.logits(run, h.value.narrow(0, n - 1, 1)), ctx.stream);
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const Sampling& s, std::uint64_t index) {
  for (float x : logits)
    if (!std::isfinite(x)) fail("the model's logits are not finite (", x, "): its weights are damaged");
  if (s.temperature <= 0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const Candidates c = candidates_of(logits, s);
  const double total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
  const RandomSite site{s.seed, 0, site_of("generate")};
  double left = total * static_cast<double>(random_bits(site, index)) * 0x1p-32;
  for (std::size_t i = 0; i < c.ids.size(); ++i)
    if ((left -= c.weights[i]) < 0) return c.ids[i];
  return c.ids.back();
}

void generate(const Decoder& model, const ExecContext& ctx, std::vector<std::int32_t> prompt, const Sampling& sampling,
              std::int64_t max_tokens, const std::function<bool(std::int32_t)>& on_token) {
  RING_CHECK(!prompt.empty(), "generate needs at least one token to start from");
  const std::int64_t context = model.config().context;
  const auto forget = [&](std::size_t keep) {
    if (prompt.size() > keep) prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(keep));
  };
  const std::size_t half = static_cast<std::size_t>(std::max<std::int64_t>(1, context / 2));
  if (static_cast<std::int64_t>(prompt.size()) > context) forget(half);
  const std::int64_t given = static_cast<std::int64_t>(prompt.size());
  KvCache cache(model.config(), 1, given + std::min(max_tokens, context - given), ctx);
  std::vector<std::int32_t> fresh = prompt;
  for (std::int64_t i = 0; i < max_tokens; ++i) {
    if (cache.lengths[0] + static_cast<std::int64_t>(fresh.size()) > context) {
      forget(half);
      cache.lengths[0] = 0;
      fresh = prompt;
    }
    std::vector<float> logits = feed(model, ctx, fresh, cache);
    if (sampling.tokens > 0) logits.resize(std::min(logits.size(), static_cast<std::size_t>(sampling.tokens)));
    const std::int32_t next = sample_token(logits, sampling, static_cast<std::uint64_t>(i));
    if (!on_token(next)) return;
    prompt.push_back(next);
    fresh = {next};
  }
}

}  // namespace ring
