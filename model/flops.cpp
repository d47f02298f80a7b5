#include "model/flops.h"

#include <algorithm>
#include <numeric>

#include "core/checked.h"
#include "kernels/attention/pairs.h"
#include "model/patterns.h"

namespace ring {
namespace {

// Returns, for each layer, the number of (query, key) pairs in one sequence, averaged over the heads.
std::vector<double> pairs_of_layers(const ModelConfig& c, std::int64_t context) {
  const std::vector<Span> whole = {{0, narrow<std::int32_t>(context ? context : c.context), 0, 0}};
  std::vector<std::pair<Pattern, double>> counted;
  std::vector<double> pairs;
  for (const Pattern& p : patterns_of(c)) {
    auto at = std::ranges::find_if(counted, [&](const auto& known) { return same_pairs(known.first, p); });
    if (at == counted.end()) at = counted.insert(at, {p, kept_pairs(p, whole, whole, c.kv_heads)});
    pairs.push_back(at->second);
  }
  return pairs;
}

}  // namespace

double attention_pairs(const ModelConfig& c, std::int64_t context) {
  const std::vector<double> pairs = pairs_of_layers(c, context);
  return std::accumulate(pairs.begin(), pairs.end(), 0.0);
}

std::vector<double> block_flops_per_token(const ModelConfig& c, std::int64_t context) {
  const double qkv = static_cast<double>((c.heads + 2 * c.kv_heads) * c.head_dim * c.width);
  const double out = static_cast<double>(c.heads * c.head_dim * c.width);
  const double mlp = static_cast<double>((c.mlp == Mlp::swiglu ? 3 : 2) * c.width * c.mlp_width);
  const double queries = static_cast<double>(context ? context : c.context);
  std::vector<double> flops;
  for (const double pairs : pairs_of_layers(c, context))
    flops.push_back(6 * (qkv + out + mlp) + 12 * static_cast<double>(c.heads * c.head_dim) * pairs / queries);
  return flops;
}

double head_flops_per_token(const ModelConfig& c) { return 6 * static_cast<double>(c.vocab_size * c.width); }

double flops_per_token(const ModelConfig& c, std::int64_t context) {
  const std::vector<double> blocks = block_flops_per_token(c, context);
  return std::accumulate(blocks.begin(), blocks.end(), head_flops_per_token(c));
}

}  // namespace ring
