#include "trainer/written_text.h"

namespace ring {

WrittenText::WrittenText(const std::shared_ptr<const Tokenizer>& tokenizer, std::vector<std::string> stops,
                         bool ignore_end)
    : end_of_text_(ignore_end ? std::nullopt : tokenizer->end_of_text()),
      decoder_(tokenizer),
      stops_(std::move(stops)) {}

std::string WrittenText::push(std::int32_t token) {
  if (token == end_of_text_) {
    end_ = "end_of_text";
    return "";
  }
  ++tokens_;
  const std::string shown = stops_.push(decoder_.push(token));
  if (stops_.found()) end_ = "stop";
  text_ += shown;
  return shown;
}

std::string WrittenText::finish() {
  std::string shown = stops_.push(decoder_.finish());
  if (stops_.found())
    end_ = "stop";
  else
    shown += stops_.finish();
  text_ += shown;
  return shown;
}

}  // namespace ring
