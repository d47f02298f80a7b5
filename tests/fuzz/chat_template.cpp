// Target: chat templates. The input is the template up to the first NUL byte, then the messages as JSON. Whatever they
// are, rendering ends soon, and the parts of a conversation add up to its text.

#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "text/chat/conversation.h"
#include "text/chat/template.h"

namespace {

constexpr const char* kConversation =
    R"([{"role": "system", "content": " s "}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": "r\n"}])";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t nul = std::min(all.find('\0'), all.size());
  const std::string source(all.substr(0, nul));
  try {
    const auto messages = nlohmann::ordered_json::parse(nul < all.size() ? all.substr(nul + 1) : kConversation);
    const ring::chat::Template chat(source, "fuzz");
    const ring::chat::Limits small{20000, 1 << 16};
    const ring::chat::Rendered r = chat.render({{"messages", ring::chat::from_json(messages)}}, small);
    std::size_t end = 0;
    for (const auto& [begin, stop] : r.generations) {
      if (begin < end || stop <= begin || stop > r.text.size()) std::abort();
      end = stop;
    }
    std::string text;
    const ring::chat::ConversationWriter writer({source, {{"eos_token", "</s>"}}}, "fuzz", small);
    for (const auto& part : writer.parts(messages, nullptr)) text += part.text;
    if (text.empty()) std::abort();
  } catch (const ring::Error&) {
  } catch (const nlohmann::json::exception&) {
  }
  return 0;
}
