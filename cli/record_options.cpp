#include "cli/record_options.h"

#include "cli/command.h"
#include "data/prepare.h"
#include "text/chat/format.h"

namespace ring {

void add_record_options(Command command, PrepareOptions& o, const std::string& needed) {
  RecordMembers& m = o.members;
  Option const all[] = {
      command.add_option("--text-field", m.text,
                         "the input is JSON Lines or Parquet, and this member of each record is a document's text "
                         "(with dots: a member's member); files named .jsonl or .ndjson are, with 'text'"),
      command.add_option("--prompt-field", m.prompt,
                         "the input is JSON Lines or Parquet of prompts and completions, and this member of each "
                         "record is the prompt, which does not count as a target"),
      command.add_option("--completion-field", m.completion, "the field with the completion, which counts in the loss"),
      command
          .add_option(
              "--chat-field",
              [&m](const std::string& name) {
                m.messages = name;
                m.chats = name.empty();
              },
              "the input is JSON Lines or Parquet of conversations, of which only the assistants' messages count; NAME "
              "is the member with the list of messages. Without a NAME each record's form is found: messages, "
              "conversations (ShareGPT's), or instruction, input and output (Alpaca's)")
          .takes(0, 1),
      command.add_option("--chat-template", o.chat_template,
                         "how conversations are written: a file with a template in Jinja, or " +
                             chat::template_names() + "; by default as in the tokenizer's own files")};
  for (Option option : all) {
    option.type_name(option.name() == "--chat-template" ? "NAME|FILE" : "NAME");
    if (!needed.empty()) option.needs(needed);
  }
}

}  // namespace ring
