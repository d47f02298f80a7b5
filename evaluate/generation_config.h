#pragma once
// The generation_config.json of published weights: how texts end and are sampled. A run keeps the file unchanged, and
// an export writes it out again.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/origin.h"
#include "evaluate/generate.h"

namespace ring {

inline constexpr const char* kGenerationFile = "generation_config.json";

struct GenerationConfig {
  std::vector<std::int32_t> ends;  // tokens that end a text, beside the tokenizer's end-of-text token
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<std::int64_t> top_k;

  // Overwrites the fields of `sampling` that this config specifies.
  void apply(Sampling& sampling) const;
};

// Reads eos_token_id (a number or a list), temperature, top_p, top_k and repetition_penalty in the same way as
// transformers and vLLM; "do_sample": false means temperature 0. Keys that are missing or null are ignored. Throws
// Error, which names `file` and the key, for other values, and for tokens >= vocab_size.
GenerationConfig parse_generation_config(const std::string& text, const std::string& file, std::int64_t vocab_size);

// Returns the text of the generation_config.json beside a checkpoint or in the checkpoint's run; empty if there is
// none.
std::string generation_text_of(const std::string& checkpoint);
// Returns the parsed generation_config.json of a checkpoint. Throws Error like parse_generation_config().
GenerationConfig generation_config_of(const Origin&);

// Copies the generation_config.json of the weights with which a run starts (init_from) into the run's directory. If
// init_from is empty, removes the run's file.
void copy_generation_config(const RunDirectory&, const std::string& init_from);

}  // namespace ring
