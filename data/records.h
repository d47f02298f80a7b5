#pragma once
// Records of JSON Lines and Parquet tables as documents: a text, a prompt and its completion, or a conversation.

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/document_sink.h"

namespace ring {

namespace chat {
class ConversationWriter;
}

// Which members of a record are read, by name, or names with dots between them for members of members.
struct RecordMembers {
  std::string text{};                  // the document; or
  std::string prompt{}, completion{};  // the document is both, of which only the second counts; or
  std::string messages{};              // a conversation, of which only assistants' turns count; or
  bool chats = false;                  // a conversation in one of the forms of data/chat_forms.h, likewise
  std::shared_ptr<const chat::ConversationWriter> writer{};  // of conversations
  bool keep_empty = false;      // text: a record whose text is empty gives a document without parts
  bool named_by_option = true;  // false: the command has no --text-field, so no message offers it

  bool any() const { return !text.empty() || masked(); }
  bool conversation() const { return chats || !messages.empty(); }
  bool masked() const { return !completion.empty() || conversation(); }  // some tokens do not count as targets
  std::string names() const;                                             // for people: "'prompt' and 'completion'"
};

// Gives a sink the document of a record. Records without any text are passed over, unless keep_empty. Throws Error,
// which begins with `where`, if a member is missing or has another type, or if a conversation cannot be written.
using TakeRecord = std::function<void(const nlohmann::ordered_json& record, const std::string& where)>;
TakeRecord documents_of(const RecordMembers&, DocumentSink& sink);

}  // namespace ring
