#pragma once
// How the texts of published weights end and are drawn: their generation_config.json, which a run keeps as it is and an
// export writes again.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/origin.h"
#include "evaluate/generate.h"

namespace ring {

inline constexpr const char* kGenerationFile = "generation_config.json";

struct GenerationConfig {
  std::vector<std::int32_t> ends;  // tokens that end a text, besides the tokenizer's
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<std::int64_t> top_k;

  // Puts the settings in place of those of `sampling`; settings that are missing leave it as it is.
  void apply(Sampling& sampling) const;
};

// Reads eos_token_id (a number or a list), temperature, top_p, top_k and repetition_penalty, as transformers and vLLM
// take them; "do_sample": false is a temperature of 0. Keys that are missing or null say nothing. Throws Error, which
// names `file` and the key, for other values, and for tokens that a vocabulary of so many tokens lacks.
GenerationConfig parse_generation_config(const std::string& text, const std::string& file, std::int64_t vocab_size);

// Returns the text of the file beside a checkpoint, or in its run; empty: there is none.
std::string generation_text_of(const std::string& checkpoint);
// The same, read. Throws Error as parse_generation_config().
GenerationConfig generation_config_of(const Origin&);

// Makes a run's file that of the weights that the run begins with; empty: removes the file.
void keep_generation_config(const RunDirectory&, const std::string& init_from);

}  // namespace ring
