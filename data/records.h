#pragma once
// Converts records of JSON Lines and Parquet tables to documents: a text, a prompt with its completion, a conversation,
// or a pair of answers to one prompt.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/document_sink.h"

namespace ring {

namespace chat {
class ConversationWriter;
}

// How the two answers of a record are written: as texts, or as lists of messages.
enum class PreferenceForm : std::uint8_t { none, text, messages };

// Names of the record members that are read, in one of five ways: text, prompt and completion, messages, chats, or
// preferences. A name with dots may refer to a nested member.
struct RecordMembers {
  std::string text{};                  // the member that is the document
  std::string prompt{}, completion{};  // the document is both together; only the completion counts as targets
  std::string messages{};              // a conversation; only the assistant's turns count as targets
  bool chats = false;  // true for a conversation in one of the formats of data/chat_forms.h, with the same targets
  // If set, a record's `prompt`, `chosen` and `rejected` become two documents: the prompt with the chosen answer, and
  // the prompt with the rejected answer. Only the answers count as targets.
  PreferenceForm preferences = PreferenceForm::none;
  std::shared_ptr<const chat::ConversationWriter> writer{};  // writes conversations
  bool keep_empty = false;      // with `text`: true to turn a record with empty text into a document without parts
  bool named_by_option = true;  // false if the command has no --text-field, so that messages do not suggest it

  bool any() const { return !text.empty() || masked(); }
  bool conversation() const { return chats || !messages.empty() || preferences == PreferenceForm::messages; }
  bool pairs() const { return preferences != PreferenceForm::none; }
  bool masked() const {
    return !completion.empty() || conversation() || pairs();
  }                           // true if some tokens do not count as targets
  std::string names() const;  // names of the members for display, e.g. "'prompt' and 'completion'"
};

// A function that passes the document of a record to a sink. Skips records without text unless keep_empty. Throws
// Error, with `where` at the start, if a member is missing or has a different type, or if a conversation cannot be
// written.
using TakeRecord = std::function<void(const nlohmann::ordered_json& record, const std::string& where)>;
TakeRecord make_record_parser(const RecordMembers&, DocumentSink& sink);

}  // namespace ring
