#pragma once
// What a model writes, token by token, as text: up to the end of the text, or to before a stop string.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "trainer/stop_strings.h"

namespace ring {

class WrittenText {
 public:
  // ignore_end: an end-of-text token does not end it.
  WrittenText(const std::shared_ptr<const Tokenizer>&, std::vector<std::string> stops, bool ignore_end = false);

  // Each returns what can be shown now, past what was shown before.
  std::string push(std::int32_t token);
  std::string finish();  // after the last token
  bool goes_on() const { return end_.empty(); }

  // "end_of_text", "stop", or "length", where whoever wrote it came to an end first.
  std::string end() const { return end_.empty() ? "length" : end_; }
  const std::optional<std::string>& stop() const { return stops_.found(); }  // the stop string
  const std::string& text() const { return text_; }                          // all that was shown
  std::int64_t tokens() const { return tokens_; }                            // without the one that ends a text

 private:
  std::optional<std::int32_t> end_of_text_;
  StreamDecoder decoder_;
  StopStrings stops_;
  std::string text_, end_;
  std::int64_t tokens_ = 0;
};

}  // namespace ring
