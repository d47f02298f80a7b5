#pragma once
// Conversations in the forms that data sets are published in:
//   messages       a list of messages with role and content, as Hugging Face's
//   conversations  a list of messages with from and value, as ShareGPT's
//   instruction    one question and, in output, its answer, as Alpaca's; input, if not empty, continues the question
// The last two may have a `system` of the record, which becomes the first message.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ring {

// The members of a record by which these forms are told apart, and all that they are read from.
inline constexpr const char* kChatMembers[] = {"messages", "conversations", "instruction"};
inline constexpr const char* kChatColumns[] = {"messages", "conversations", "instruction", "input",
                                               "output",   "system",        "history",     "tools"};

// Returns which of kChatMembers the record has. A null is none, nor is an instruction without an output.
std::vector<std::string> chat_members_of(const nlohmann::ordered_json& record);
bool has_chat(const nlohmann::ordered_json& record);

// Returns the conversation as a list of messages with role and content. `found`: the record's member `name`, a list of
// messages in either form, or the text of an instruction. A list with role and content is returned as it is. Throws
// Error if messages of both forms are in one list, a role is unknown, or a member is not what its form has.
nlohmann::ordered_json chat_messages(const nlohmann::ordered_json& record, const std::string& name,
                                     const nlohmann::ordered_json& found);
// Returns the record's `tools`, read first if they are the text of a JSON list; null if there are none.
nlohmann::ordered_json chat_tools(const nlohmann::ordered_json& record);

}  // namespace ring
