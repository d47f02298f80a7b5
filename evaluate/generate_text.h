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

// Continues texts as one batch. A text ends when a condition of TextEnding holds, after max_tokens, or when show(text
// index, piece) returns false. show gets each text piece by piece. At the end of a text, it gets the part that was held
// back because it might have begun a stop string.
std::vector<GeneratedText> generate_texts(const Session&, std::vector<TextStart> texts, std::int64_t max_tokens,
                                          const TextEnding&,
                                          const std::function<bool(std::size_t, const std::string&)>& show);
// Same for a single text.
GeneratedText generate_text(const Session&, const TextStart&, std::int64_t max_tokens, const TextEnding&,
                            const std::function<bool(const std::string&)>& show);

}  // namespace ring
