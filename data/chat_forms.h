#pragma once
// Reads conversations in the three common formats. Each format is recognized by a member of the record:
//   messages       Hugging Face: a list of messages with `role` and `content`
//   conversations  ShareGPT: a list of messages with `from` and `value`
//   instruction    Alpaca: a question, with the answer in `output`; `input`, if not empty, continues the question
// With `conversations` and `instruction`, the record's `system`, if present, becomes the first message.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ring {

// Members that identify the chat format of a record.
inline constexpr const char* kChatMembers[] = {"messages", "conversations", "instruction"};
// All members that are read from a record with a conversation.
inline constexpr const char* kChatColumns[] = {
    "messages", "conversations", "instruction",          "input",  "output", "system", "history",
    "tools",    "documents",     "chat_template_kwargs", "images", "videos", "audios"};

// Returns the kChatMembers that the record has. Ignores a member that is null, and `instruction` if `output` is
// missing.
std::vector<std::string> chat_members_of(const nlohmann::ordered_json& record);
bool has_chat(const nlohmann::ordered_json& record);

// Returns the conversation as a list of messages with role and content. found: value of the record's member called
// `name`, which is a list of messages or the text of an instruction. If its messages already have role and content, the
// list is returned unchanged. Throws Error if a list mixes messages of both formats, if a role is unknown, or if a
// member has the wrong type.
nlohmann::ordered_json chat_messages(const nlohmann::ordered_json& record, const std::string& name,
                                     const nlohmann::ordered_json& found);
// Returns the variables that the record passes to a chat template: the members of `chat_template_kwargs`, as in TRL,
// and `tools` and `documents`. `tools` may be a string that contains a JSON list. Throws Error if the record refers to
// media.
nlohmann::ordered_json chat_variables(const nlohmann::ordered_json& record);

}  // namespace ring
