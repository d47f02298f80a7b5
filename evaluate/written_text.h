#pragma once
// What a model writes, token by token, as text: up to the end of the text, or to before a stop string.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/stop_strings.h"
#include "text/tokenizer.h"

namespace ring {

// What ends a text, besides the end-of-text token.
struct TextEnding {
  std::vector<std::string> stops{};
  std::optional<std::int32_t> token{};      // ends an answer
  std::vector<std::int32_t> more_tokens{};  // end a text too, by generation_config.json
  bool ignore_end_of_text = false;
  bool strip = false;  // the text is shown without blank space (ASCII) around it
};

class WrittenText {
 public:
  WrittenText(const std::shared_ptr<const Tokenizer>&, TextEnding);

  // Each returns what can be shown now, past what was shown before.
  std::string push(std::int32_t token);
  std::string finish();  // after the last token
  bool goes_on() const { return end_.empty(); }

  // "end_of_text", "end_of_answer", "stop", or "length", where whoever wrote it came to an end first.
  std::string end() const { return end_.empty() ? "length" : end_; }
  const std::optional<std::string>& stop() const { return stops_.found(); }  // the stop string
  const std::string& text() const { return text_; }                          // all that was shown
  std::int64_t tokens() const { return tokens_; }                            // without the one that ends a text

 private:
  std::string show(std::string piece);
  bool ends_text(std::int32_t token) const;
  std::vector<std::int32_t> ends_of_text_;
  std::optional<std::int32_t> end_of_answer_;
  StreamDecoder decoder_;
  StopStrings stops_;
  bool strip_;
  std::string blank_;  // that may be followed by text
  std::string text_, end_;
  std::int64_t tokens_ = 0;
};

}  // namespace ring
