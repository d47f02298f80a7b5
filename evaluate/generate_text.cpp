#include "evaluate/generate_text.h"

#include <utility>

namespace ring {

std::vector<GeneratedText> generate_texts(const Session& s, std::vector<TextStart> texts, std::int64_t max_tokens,
                                          const TextEnding& ending,
                                          const std::function<bool(std::size_t, const std::string&)>& show) {
  std::vector<GeneratedText> written;
  for (TextStart& text : texts) {
    text.sampling = resolve_sampling(s, text.sampling);
    written.emplace_back(s.tokenizer, ending);
  }
  const auto push = [&](std::size_t i, std::int32_t id) {
    const bool wanted = show(i, written[i].push(id));
    return wanted && written[i].continues();
  };
  generate_together(*s.model, s.ctx, std::move(texts), max_tokens, push, s.kv_cache);
  for (std::size_t i = 0; i < written.size(); ++i) show(i, written[i].finish());
  return written;
}

GeneratedText generate_text(const Session& s, const TextStart& text, std::int64_t max_tokens, const TextEnding& ending,
                            const std::function<bool(const std::string&)>& show) {
  const auto one = [&](std::size_t, const std::string& piece) { return show(piece); };
  return std::move(generate_texts(s, {text}, max_tokens, ending, one).front());
}

}  // namespace ring
