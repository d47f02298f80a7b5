// Target: records of JSON Lines, split anywhere into blocks: texts, prompts with completions, or conversations. The
// first byte chooses the kind and the length of blocks.

#include "data/json_lines.h"

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/check.h"
#include "data/records.h"
#include "text/chat/conversation.h"

namespace {

// Checks that every document ends and that no part is empty.
class Checked final : public ring::DocumentSink {
 public:
  void add_part(std::string_view text, bool) override {
    if (text.empty()) std::abort();
    open_ = true;
  }
  void end() override {
    if (!open_) std::abort();
    open_ = false;
  }
  bool open() const { return open_; }

 private:
  bool open_ = false;
};

ring::RecordMembers members(unsigned kind) {
  using ring::chat::ConversationWriter;
  static const auto chatml = std::make_shared<const ConversationWriter>(
      ring::chat::Format{ring::chat::named_template("chatml"), {}}, "chatml");
  static const auto unmarked = std::make_shared<const ConversationWriter>(
      ring::chat::Format{"{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", {}}, "unmarked");
  if (kind == 0) return {.text = "a.b"};
  if (kind == 1) return {.prompt = "a.b", .completion = "c"};
  return {.messages = "a", .writer = kind == 2 ? chatml : unmarked};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t block = std::size_t{data[0]} % 64 + 1;
  Checked documents;
  try {
    ring::JsonLines lines("in.jsonl", make_record_parser(members(data[0] / 64), documents));
    for (std::size_t at = 0; at < text.size(); at += block) lines.add_block(text.substr(at, block));
    lines.on_end_of_file();
    if (documents.open()) std::abort();
  } catch (const ring::Error&) {
  }
  return 0;
}
