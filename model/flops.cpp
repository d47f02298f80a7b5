#include "model/flops.h"

#include <algorithm>

#include "core/checked.h"
#include "kernels/attention/pairs.h"
#include "model/patterns.h"

namespace ring {

double attention_pairs(const ModelConfig& c, std::int64_t context) {
  const std::vector<Span> whole = {{0, narrow<std::int32_t>(context ? context : c.context), 0, 0}};
  std::vector<std::pair<Pattern, double>> counted;
  double pairs = 0;
  for (const Pattern& p : patterns_of(c)) {
    auto at = std::ranges::find_if(counted, [&](const auto& known) { return same_pairs(known.first, p); });
    if (at == counted.end()) at = counted.insert(at, {p, kept_pairs(p, whole, whole, c.kv_heads)});
    pairs += at->second;
  }
  return pairs;
}

double flops_per_token(const ModelConfig& c, std::int64_t context) {
  const double qkv = static_cast<double>((c.heads + 2 * c.kv_heads) * c.head_dim * c.width);
  const double out = static_cast<double>(c.heads * c.head_dim * c.width);
  const double mlp = static_cast<double>((c.mlp == Mlp::swiglu ? 3 : 2) * c.width * c.mlp_width);
  const double head = static_cast<double>(c.vocab_size * c.width);
  const double matrices = static_cast<double>(c.layers) * (qkv + out + mlp) + head;
  const double queries = static_cast<double>(context ? context : c.context);
  const double pairs = attention_pairs(c, context) / queries;  // pairs of one query, over all layers
  return 6 * matrices + 12 * static_cast<double>(c.heads * c.head_dim) * pairs;
}

}  // namespace ring
