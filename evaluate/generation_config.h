#pragma once
// The generation_config.json of published weights: how texts end and are sampled. A run keeps the file unchanged, and
// an export writes it out again.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/origin.h"
#include "evaluate/generate.h"
#include "evaluate/kept_files.h"

namespace ring {

struct GenerationConfig {
  std::vector<std::int32_t> ends;  // tokens that end a text, beside the tokenizer's end-of-text token
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<std::int64_t> top_k;
  // Keys with values that change how transformers samples, but not how we do, such as "min_p 0.1".
  std::vector<std::string> unsupported;

  // Overwrites the fields of `sampling` that this config specifies. Warns of `unsupported`.
  void apply(Sampling& sampling) const;
};

// Reads eos_token_id (a number or a list), temperature, top_p, top_k and repetition_penalty in the same way as
// transformers and vLLM; "do_sample": false means temperature 0. Keys that are missing or null are ignored. Throws
// Error, which names `file` and the key, for other values, and for tokens >= vocab_size.
GenerationConfig parse_generation_config(const std::string& text, const std::string& file, std::int64_t vocab_size);

// Returns the parsed generation_config.json of a checkpoint. Throws Error like parse_generation_config().
GenerationConfig generation_config_of(const Origin&);

}  // namespace ring
