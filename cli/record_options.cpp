#include "cli/record_options.h"

#include "cli/command.h"
#include "data/prepare.h"
#include "text/chat/format.h"

namespace ring {

void add_record_options(Command command, PrepareOptions& o, const std::string& required_option) {
  RecordMembers& m = o.members;
  Option const all[] = {
      command.add_option("--text-field", m.text,
                         "read JSON Lines or Parquet with this member as the text (dots for nested members); default "
                         "for .jsonl and .ndjson: text"),
      command.add_option("--prompt-field", m.prompt,
                         "read JSON Lines or Parquet with this member as the prompt, which does not count as a target"),
      command.add_option("--completion-field", m.completion, "member with the completion, which counts as a target"),
      command
          .add_option(
              "--chat-field",
              [&m](const std::string& name) {
                m.messages = name;
                m.chats = name.empty();
              },
              "read JSON Lines or Parquet of conversations, with the list of messages in member NAME; only assistant "
              "messages count as targets. Without NAME the form is detected: messages, conversations (ShareGPT), or "
              "instruction, input and output (Alpaca)")
          .takes(0, 1),
      command
          .add_option(
              "--preferences",
              [&m](const std::string& form) {
                m.preferences = form == "text" ? PreferenceForm::text : PreferenceForm::messages;
              },
              "read JSON Lines or Parquet with 'prompt', 'chosen' and 'rejected', for training with preference.loss: "
              "each is a text, or each is a list of messages")
          .one_of({"text", "messages"}),
      command.add_option("--chat-template", o.chat_template,
                         "format of conversations: a file with a Jinja template, or " + chat::template_names() +
                             "; default: the template in the tokenizer's files")};
  for (Option option : all) {
    option.type_name(option.name() == "--chat-template" ? "NAME|FILE"
                     : option.name() == "--preferences" ? "text|messages"
                                                        : "NAME");
    if (!required_option.empty()) option.needs(required_option);
  }
}

}  // namespace ring
