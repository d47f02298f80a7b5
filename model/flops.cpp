#include "model/flops.h"

#include <map>

#include "core/checked.h"
#include "kernels/attention/pairs.h"
#include "model/patterns.h"

namespace ring {

double attention_pairs(const ModelConfig& c) {
  const std::vector<Pattern> patterns = patterns_of(c);
  const std::vector<const AttentionConfig*> sections = attentions_of(c);
  const std::vector<Span> whole = {{0, narrow<std::int32_t>(c.context), 0, 0}};
  // Layers of one section whose heads sample the same places have the same pairs.
  std::map<std::pair<const AttentionConfig*, std::vector<std::int32_t>>, double> counted;
  double pairs = 0;
  for (std::size_t layer = 0; layer < patterns.size(); ++layer) {
    const Pattern& p = patterns[layer];
    std::vector<std::int32_t> shifts;
    for (const Branch& b : p.branches) shifts.push_back(p.shift % b.rate);
    const auto [at, fresh] = counted.insert({{sections[layer], shifts}, 0});
    if (fresh) at->second = kept_pairs(p, whole, whole, c.kv_heads);
    pairs += at->second;
  }
  return pairs;
}

double flops_per_token(const ModelConfig& c) {
  const double qkv = static_cast<double>((c.heads + 2 * c.kv_heads) * c.head_dim * c.width);
  const double out = static_cast<double>(c.heads * c.head_dim * c.width);
  const double mlp = static_cast<double>((c.mlp == Mlp::swiglu ? 3 : 2) * c.width * c.mlp_width);
  const double head = static_cast<double>(c.vocab_size * c.width);
  const double matrices = static_cast<double>(c.layers) * (qkv + out + mlp) + head;
  const double pairs = attention_pairs(c) / static_cast<double>(c.context);  // of one query, over all layers
  return 6 * matrices + 12 * static_cast<double>(c.heads * c.head_dim) * pairs;
}

}  // namespace ring
