#include "evaluate/generated_text.h"

#include <algorithm>
#include <utility>

namespace ring {

GeneratedText::GeneratedText(const std::shared_ptr<const Tokenizer>& tokenizer, TextEnding ending)
    : end_of_answer_(ending.token), decoder_(tokenizer), stops_(std::move(ending.stops)), strip_(ending.strip) {
  if (ending.ignore_end_of_text) return;
  ends_of_text_ = std::move(ending.more_tokens);
  if (const auto end = tokenizer->end_of_text()) ends_of_text_.push_back(*end);
}

bool GeneratedText::ends_text(std::int32_t token) const { return std::ranges::count(ends_of_text_, token) > 0; }

std::string GeneratedText::append_piece(std::string piece) {
  if (strip_) {
    constexpr const char* kBlank = " \t\n\v\f\r";
    piece = std::exchange(blank_, "") + piece;
    if (text_.empty()) piece.erase(0, piece.find_first_not_of(kBlank));
    const std::size_t end = piece.find_last_not_of(kBlank) + 1;  // 0 if there is only blank space: npos + 1
    blank_ = piece.substr(end);
    piece.resize(end);
  }
  text_ += piece;
  return piece;
}

std::string GeneratedText::push(std::int32_t token) {
  if (ends_text(token) || token == end_of_answer_) {
    end_ = ends_text(token) ? "end_of_text" : "end_of_answer";
    return "";
  }
  ++tokens_;
  std::string shown = append_piece(stops_.push(decoder_.push(token)));
  if (stops_.found()) end_ = "stop";
  return shown;
}

std::string GeneratedText::finish() {
  std::string rest = stops_.push(decoder_.finish());
  if (stops_.found())
    end_ = "stop";
  else
    rest += stops_.finish();
  return append_piece(std::move(rest));
}

}  // namespace ring
