#pragma once
// Sampling text from a trained decoder, one token at a time, through a key/value cache.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/decoder.h"

namespace ring {

struct Sampling {
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // keep this many likeliest tokens; 0: all
  double top_p = 1.0;        // keep the fewest likeliest tokens that have this much probability (Holtzman et al. 2020)
  std::uint64_t seed = 1;
  std::int64_t tokens = 0;  // draw from the first so many ids, those that the tokenizer knows; 0: all
};

// One token from unnormalised log-probabilities; `index` addresses the random number. Error: a logit is not finite.
std::int32_t sample_token(std::span<const float> logits, const Sampling&, std::uint64_t index);

// Continues `prompt` (at least one token) by up to max_tokens, handing each to on_token until it returns false. Beyond
// the model's context the older half of the tokens is forgotten.
void generate(const Decoder&, const ExecContext&, std::vector<std::int32_t> prompt, const Sampling&,
              std::int64_t max_tokens, const std::function<bool(std::int32_t)>& on_token);

}  // namespace ring
