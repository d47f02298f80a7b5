#pragma once
// Converts records of JSON Lines and Parquet tables to documents: a text, a prompt and completion, or a conversation.

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/document_sink.h"

namespace ring {

namespace chat {
class ConversationWriter;
}

// Names of the members of a record that are read; a name with dots may refer to a nested member.
struct RecordMembers {
  std::string text{};                  // the member that is the document; or
  std::string prompt{}, completion{};  // the document is both; only the completion counts as targets; or
  std::string messages{};              // a conversation; only assistants' turns count as targets; or
  bool chats = false;                  // a conversation in one of the forms of data/chat_forms.h, likewise
  std::shared_ptr<const chat::ConversationWriter> writer{};  // writes conversations
  bool keep_empty = false;      // with `text`: a record with empty text becomes a document without parts
  bool named_by_option = true;  // false if the command has no --text-field, so that no message suggests it

  bool any() const { return !text.empty() || masked(); }
  bool conversation() const { return chats || !messages.empty(); }
  bool masked() const { return !completion.empty() || conversation(); }  // some tokens do not count as targets
  std::string names() const;                                             // for messages: "'prompt' and 'completion'"
};

// Returns a function that passes the document of a record to a sink. Skips records without text unless keep_empty. The
// function throws Error, which begins with `where`, if a member is missing or has a different type, or if a
// conversation cannot be written.
using TakeRecord = std::function<void(const nlohmann::ordered_json& record, const std::string& where)>;
TakeRecord make_record_parser(const RecordMembers&, DocumentSink& sink);

}  // namespace ring
