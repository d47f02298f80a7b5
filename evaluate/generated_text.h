#pragma once
// Decodes the tokens that a model generates. The text ends at an end token or just before a stop string.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/stop_strings.h"
#include "text/tokenizer.h"

namespace ring {

// Conditions that end a text, in addition to the end-of-text token.
struct TextEnding {
  std::vector<std::string> stops{};
  std::optional<std::int32_t> token{};      // token that ends an answer of a chat
  std::vector<std::int32_t> more_tokens{};  // more tokens that end a text, from generation_config.json
  bool ignore_end_of_text = false;
  bool strip = false;  // strip blank space (ASCII) around the text
};

class GeneratedText {
 public:
  GeneratedText(const std::shared_ptr<const Tokenizer>&, TextEnding);

  // Both functions return the new text that can be shown now.
  std::string push(std::int32_t token);
  std::string finish();  // call after the last token
  bool continues() const { return end_.empty(); }

  // Returns "end_of_text", "end_of_answer" or "stop"; "length" if none of them ended the text.
  std::string end() const { return end_.empty() ? "length" : end_; }
  const std::optional<std::string>& stop() const { return stops_.found(); }  // stop string that ended the text
  const std::string& text() const { return text_; }                          // all text shown so far
  std::int64_t tokens() const { return tokens_; }                            // excludes the token that ended the text

 private:
  std::string append_piece(std::string piece);
  bool ends_text(std::int32_t token) const;
  std::vector<std::int32_t> ends_of_text_;
  std::optional<std::int32_t> end_of_answer_;
  StreamDecoder decoder_;
  StopStrings stops_;
  bool strip_;
  std::string blank_;  // trailing blank space, shown only if more text follows
  std::string text_, end_;
  std::int64_t tokens_ = 0;
};

}  // namespace ring
