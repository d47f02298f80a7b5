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
    if (mixer_of(c, std::ssize(pairs)) != Mixer::attention) {
      pairs.push_back(0);
      continue;
    }
    auto at = std::ranges::find_if(counted, [&](const auto& known) { return same_pairs(known.first, p); });
    if (at == counted.end()) at = counted.insert(at, {p, kept_pairs(p, whole, whole, c.kv_heads)});
    pairs.push_back(at->second);
  }
  return pairs;
}

// Returns the FLOPs per token, forward and backward: 6 per weight of the matrices and of the convolution, and 18 per
// element of the states (6 in the forward: S^T k, the update of S, and S^T q).
double gated_delta_net_flops(const ModelConfig& c) {
  const GatedDeltaNetConfig& g = c.gated_delta_net;
  const auto matrices = static_cast<double>(c.width * (2 * g.keys() + 3 * g.values() + 2 * g.value_heads));
  const auto conv = static_cast<double>((2 * g.keys() + g.values()) * g.conv_kernel);
  return 6 * (matrices + conv) + 18 * static_cast<double>(g.values() * g.key_width);
}

}  // namespace

double attention_pairs(const ModelConfig& c, std::int64_t context) {
  const std::vector<double> pairs = pairs_of_layers(c, context);
  return std::accumulate(pairs.begin(), pairs.end(), 0.0);
}

std::vector<double> block_flops_per_token(const ModelConfig& c, std::int64_t context) {
  const std::int64_t gates = c.attention_output_gate ? c.heads : 0;
  const double qkv = static_cast<double>((c.heads + 2 * c.kv_heads + gates) * c.head_dim * c.width);
  const double out = static_cast<double>(c.heads * c.head_dim * c.width);
  const double mlp = static_cast<double>((is_gated(c.mlp) ? 3 : 2) * c.width * c.mlp_width);
  const double queries = static_cast<double>(context ? context : c.context);
  std::vector<double> flops;
  for (const double pairs : pairs_of_layers(c, context))
    if (mixer_of(c, std::ssize(flops)) == Mixer::gated_delta_net)
      flops.push_back(6 * mlp + gated_delta_net_flops(c));
    else
      flops.push_back(6 * (qkv + out + mlp) + 12 * static_cast<double>(c.heads * c.head_dim) * pairs / queries);
  return flops;
}

double head_flops_per_token(const ModelConfig& c) { return 6 * static_cast<double>(c.vocab_size * c.width); }

double flops_per_token(const ModelConfig& c, std::int64_t context) {
  const std::vector<double> blocks = block_flops_per_token(c, context);
  return std::accumulate(blocks.begin(), blocks.end(), head_flops_per_token(c));
}

}  // namespace ring
