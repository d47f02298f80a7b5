#include "evaluate/prompt.h"

#include "core/check.h"
#include "data/text_frame.h"

namespace ring {

std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids = tokenizer.before_text();
  const std::vector<std::int32_t> said = tokenizer.encode(text);
  ids.resize(missing_before(ids, said));
  ids.insert(ids.end(), said.begin(), said.end());
  if (ids.empty()) ids = empty_text(tokenizer);
  if (ids.empty()) ids = tokenizer.encode("\n");
  if (ids.empty()) fail("the prompt is empty, and this tokenizer has no token to start from. Give some text");
  return ids;
}

void check_prompt_fits(std::size_t tokens, std::int64_t context, const std::string& what) {
  if (tokens >= static_cast<std::size_t>(context))
    fail("the ", what, " has ", tokens, " tokens, but the model's context is ", context,
         ". Start a new one, or set a longer context with --context N (only for models with positions: rope)");
}

}  // namespace ring
