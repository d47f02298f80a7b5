#pragma once
// Continues prompts with a session's model and returns text.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "evaluate/generate.h"
#include "evaluate/generated_text.h"
#include "evaluate/session.h"

namespace ring {

// Continues texts as one batch. Each text ends at its ending, after max_tokens, or when show(text, piece) returns
// false. show gets the text piece by piece, and at the end the part that was held back.
std::vector<GeneratedText> generate_texts(const Session&, std::vector<TextStart> texts, std::int64_t max_tokens,
                                          const TextEnding&,
                                          const std::function<bool(std::size_t, const std::string&)>& show);
// Same for a single text.
GeneratedText generate_text(const Session&, const TextStart&, std::int64_t max_tokens, const TextEnding&,
                            const std::function<bool(const std::string&)>& show);

}  // namespace ring
