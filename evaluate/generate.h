#pragma once
// Sampling text from a trained decoder, one token at a time, through a key/value cache; several texts side by side.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "model/model.h"

namespace ring {

struct Sampling {
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // keep this many likeliest tokens; 0: all
  double top_p = 1.0;        // keep the fewest likeliest tokens that have this much probability (Holtzman et al. 2020)
  // Above 1: tokens that the text has already become less likely, prompt included; a positive logit is divided by it, a
  // negative one multiplied (Keskar et al. 2019, section 4.1).
  double repetition_penalty = 1;
  std::uint64_t seed = 1;
  std::int64_t tokens = 0;  // draw from the first so many ids, those that the tokenizer knows; 0: all
};

// One token from unnormalised log-probabilities; `index` addresses the random number. Error: a logit is not finite.
std::int32_t sample_token(std::span<const float> logits, const Sampling&, std::uint64_t index);

// Applies it to the logits of the tokens in `text`, to each once.
void penalize_repetitions(std::span<float> logits, std::span<const std::int32_t> text, double penalty);

// One text to be continued: at least one token. Its random numbers are those of its seed, whatever is beside it.
struct TextStart {
  std::vector<std::int32_t> tokens;
  Sampling sampling;
};
// Continues the texts side by side by up to max_tokens each. A text ends when on_token(text, token) returns false.
// Beyond the model's context the older half of a text is forgotten.
void generate_together(const Model&, const ExecContext&, std::vector<TextStart> texts, std::int64_t max_tokens,
                       const std::function<bool(std::size_t, std::int32_t)>& on_token);

// Continues `prompt` (at least one token) by up to max_tokens, handing each to on_token until it returns false. Beyond
// the model's context the older half of the tokens is forgotten.
void generate(const Model&, const ExecContext&, std::vector<std::int32_t> prompt, const Sampling&,
              std::int64_t max_tokens, const std::function<bool(std::int32_t)>& on_token);

}  // namespace ring
