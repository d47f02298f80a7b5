#pragma once
// What a session's model writes after prompts, as text.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "evaluate/generate.h"
#include "evaluate/session.h"
#include "evaluate/written_text.h"

namespace ring {

// Continues texts side by side, each up to its ending, max_tokens, or when show(text, piece) returns false. show gets
// what can be shown of a text, piece by piece, and what is left at its end.
std::vector<WrittenText> write_texts(const Session&, std::vector<TextStart> texts, std::int64_t max_tokens,
                                     const TextEnding&,
                                     const std::function<bool(std::size_t, const std::string&)>& show);
// One text.
WrittenText write_text(const Session&, const TextStart&, std::int64_t max_tokens, const TextEnding&,
                       const std::function<bool(const std::string&)>& show);

}  // namespace ring
