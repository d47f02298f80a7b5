#pragma once
// Samples text from a trained decoder token by token, with a KV cache; several texts form a batch.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "model/model.h"

namespace ring {

struct Sampling {
  double temperature = 0.8;  // 0 always selects the most likely token
  std::int64_t top_k = 0;    // keeps only this many of the most likely tokens; 0 keeps all
  // Keeps the smallest set of most likely tokens with this total probability (Holtzman et al. 2020).
  double top_p = 1.0;
  // If above 1, tokens that already occur in the text or its prompt become less likely: a positive logit is divided by
  // the penalty, a negative logit is multiplied by it (Keskar et al. 2019, section 4.1).
  double repetition_penalty = 1;
  std::uint64_t seed = 1;
  std::int64_t tokens = 0;  // sample only ids below this number, the tokenizer's vocabulary; 0 means all
};

// Samples a token, using random number `index` of the sequence that the seed determines. Throws Error if a logit is not
// finite.
std::int32_t sample_token(std::span<const float> logits, const Sampling&, std::uint64_t index);

// Applies the repetition penalty once to the logit of each distinct token in `text`.
void penalize_repetitions(std::span<float> logits, std::span<const std::int32_t> text, double penalty);

// A text to be continued, with at least one token. Its random numbers depend only on its own seed.
struct TextStart {
  std::vector<std::int32_t> tokens;
  Sampling sampling;
};
// Continues the texts as one batch, by up to max_tokens each. A text ends when on_token(text, token) returns false.
// When a text exceeds the model's context, its older half is dropped.
void generate_together(const Model&, const ExecContext&, std::vector<TextStart> texts, std::int64_t max_tokens,
                       const std::function<bool(std::size_t, std::int32_t)>& on_token,
                       KvCacheType = KvCacheType::automatic);

// Continues `prompt` (at least one token) by up to max_tokens, and passes each token to on_token until that returns
// false. When the text exceeds the model's context, its older half is dropped.
void generate(const Model&, const ExecContext&, std::vector<std::int32_t> prompt, const Sampling&,
              std::int64_t max_tokens, const std::function<bool(std::int32_t)>& on_token);

}  // namespace ring
