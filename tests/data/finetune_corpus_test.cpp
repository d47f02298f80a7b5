// Corpora of prompts with completions and of conversations: their tokens, and which tokens count for the loss.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "data/prepare.h"
#include "data/token_store.h"
#include "tests/data/corpus_case.h"
#include "text/chat/format.h"

namespace ring {
namespace {

struct ChatFolder : TempFolder {
  PrepareOptions options() {
    PrepareOptions o;
    o.inputs = {*this / "in"};
    o.tokenizer = "bytes";
    o.output = *this / "out.h5";
    o.validation_fraction = 0;
    o.threads = 2;
    return o;
  }
  PrepareOptions pairs() {
    PrepareOptions o = options();
    o.members.prompt = "prompt";
    o.members.completion = "completion";
    return o;
  }
  PrepareOptions chats(const std::string& chat_template = "chatml") {
    PrepareOptions o = options();
    o.members.messages = "messages";
    o.chat_template = chat_template;
    return o;
  }
};

// Returns every document as text, with [[ ]] around the tokens that count and with control tokens by name.
std::vector<std::string> documents(const std::string& path) {
  const auto store = TokenStore::open(path);
  const auto tokenizer = store->tokenizer();
  const TokenSplit& split = store->train();
  std::vector<std::string> all;
  for (std::uint64_t d = 0; d < split.documents(); ++d) {
    const std::uint64_t begin = split.document_start(d), n = split.document_start(d + 1) - begin;
    std::vector<std::int32_t> ids(n);
    std::vector<std::uint8_t> counts(n);
    split.read(begin, n, ids.data());
    split.read_mask(begin, n, counts.data());
    std::string text;
    for (std::size_t i = 0; i < n; ++i) {
      if (counts[i] && (i == 0 || !counts[i - 1])) text += "[[";
      const std::string bytes = tokenizer->bytes_of(ids[i]);
      text += bytes.empty() ? "{" + tokenizer->piece(ids[i]) + "}" : bytes;
      if (counts[i] && (i + 1 == n || !counts[i + 1])) text += "]]";
    }
    all.push_back(text);
  }
  return all;
}
using Documents = std::vector<std::string>;

TEST(FinetuneCorpus, OnlyCompletionsCount) {
  ChatFolder folder;
  write_text(folder / "in/a.jsonl",
             "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n{\"completion\": \"caf\xC3\xA9\", \"prompt\": \"\"}\n"
             "{\"prompt\": \"\", \"completion\": \"\"}\n\n{\"prompt\": \"say nothing\", \"completion\": \"\"}\n");
  const PrepareReport r = prepare_corpus(folder.pairs());
  EXPECT_EQ(documents(folder / "out.h5"), (Documents{"2+2=[[4{<|endoftext|>}]]", "[[caf\xC3\xA9{<|endoftext|>}]]",
                                                     "say nothing[[{<|endoftext|>}]]"}));
  EXPECT_EQ(r.targets[0], 2u + 6 + 1);
  EXPECT_EQ(r.longest, 12u);
  const auto store = TokenStore::open(folder / "out.h5");
  EXPECT_EQ(store->train().target_bytes(), 1u + 5);
  EXPECT_EQ(store->chat_template(), "");
}

TEST(FinetuneCorpus, OnlyAssistantMessagesCount) {
  ChatFolder folder;
  write_text(folder / "in/a.jsonl",
             R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})"
             "\n"
             R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
             R"({"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})"
             "\n");
  prepare_corpus(folder.chats());
  EXPECT_EQ(documents(folder / "out.h5"),
            (Documents{"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Hello<|im_end|>]]\n",
                       "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[[b<|im_end|>]]\n<|im_start|>user\nc"
                       "<|im_end|>\n<|im_start|>assistant\n[[d<|im_end|>]]\n"}));
  const auto kept = chat::Format::from_json(TokenStore::open(folder / "out.h5")->chat_template(), "kept");
  EXPECT_EQ(kept.source, chat::named_template("chatml"));
  // If the tokenizer is read from a corpus, that corpus also gives the chat template.
  PrepareOptions again = folder.chats("");
  again.tokenizer = folder / "out.h5";
  again.output = folder / "again.h5";
  prepare_corpus(again);
  EXPECT_EQ(documents(folder / "again.h5"), documents(folder / "out.h5"));
}

// The name that the template writes for the end of a turn becomes the end-of-text token if the tokenizer has no token
// of that name.
TEST(FinetuneCorpus, TheEndOfATurnIsOneToken) {
  ChatFolder folder;
  write_text(folder / "in/a.jsonl",
             R"({"c": {"turns": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}})");
  PrepareOptions o = folder.chats("plain");
  o.members.messages = "c.turns";
  prepare_corpus(o);
  EXPECT_EQ(documents(folder / "out.h5"), Documents{"### user\nHi\n\n### assistant\n[[Yo{<|endoftext|>}]]\n\n"});
}

// Results do not depend on threads or on how long documents are split.
TEST(FinetuneCorpus, LongDocumentsAreEncodedInPieces) {
  ChatFolder folder;
  std::string prompt, completion;
  for (int i = 0; i < 90000; ++i) prompt += str(i, ' '), completion += str(i * 7, '\n');
  std::string escaped;
  for (const char c : completion) escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  write_text(folder / "in/a.jsonl", "{\"prompt\": \"" + prompt + "\", \"completion\": \"" + escaped + "\"}\n");
  prepare_corpus(folder.pairs());
  EXPECT_EQ(documents(folder / "out.h5"), Documents{prompt + "[[" + completion + "{<|endoftext|>}]]"});
}

// Reads records like `--chat-field` without a name.
PrepareOptions any_chats(ChatFolder& folder, const std::string& chat_template = "chatml") {
  PrepareOptions o = folder.options();
  o.members.chats = true;
  o.chat_template = chat_template;
  return o;
}

TEST(ChatForms, OneFileMayHaveAllForms) {
  ChatFolder folder;
  write_text(
      folder / "in/a.jsonl",
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})"
      "\n"
      R"({"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "Hi"}, )"
      R"({"from": "gpt", "value": "Yo"}], "messages": null})"
      "\n"
      R"({"system": "S", "conversations": [{"from": "user", "value": "Hi"}, {"from": "assistant", "value": "Yo"}]})"
      "\n"
      R"({"conversations": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})"
      "\n"
      R"({"instruction": "Add", "input": "1 2", "output": "3"})"
      "\n"
      R"({"instruction": "Add 1 2", "input": "", "output": "3", "history": []})"
      "\n"
      R"({"instruction": "Add 1 2", "output": "3", "system": "S"})"
      "\n");
  prepare_corpus(any_chats(folder));
  const std::string system = "<|im_start|>system\nS<|im_end|>\n";
  const std::string greeting = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>]]\n";
  const auto sum = [](const std::string& asked) {
    return "<|im_start|>user\n" + asked + "<|im_end|>\n<|im_start|>assistant\n[[3<|im_end|>]]\n";
  };
  EXPECT_EQ(documents(folder / "out.h5"), (Documents{greeting, system + greeting, system + greeting, greeting,
                                                     sum("Add\n1 2"), sum("Add 1 2"), system + sum("Add 1 2")}));
}

TEST(ChatForms, AMemberMayBeNamed) {
  ChatFolder folder;
  write_text(folder / "in/a.jsonl",
             R"({"messages": 5, "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], )"
             R"("instruction": "c", "output": "d"})");
  const auto written = [&](const std::string& asked, const std::string& answer) {
    return "<|im_start|>user\n" + asked + "<|im_end|>\n<|im_start|>assistant\n[[" + answer + "<|im_end|>]]\n";
  };
  PrepareOptions o = folder.chats();
  o.members.messages = "conversations";
  prepare_corpus(o);
  EXPECT_EQ(documents(folder / "out.h5"), Documents{written("a", "b")});
  o.members.messages = "instruction";
  prepare_corpus(o);
  EXPECT_EQ(documents(folder / "out.h5"), Documents{written("c", "d")});
}

TEST(ChatForms, FunctionCallsAndToolsReachTheTemplate) {
  ChatFolder folder;
  write_text(folder / "t.jinja",
             "{% for t in tools or [] %}<{{ t.name }}>{% endfor %}{% for m in messages %}{{ m.role }}:"
             "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}={{ c.function.arguments.x }} "
             "{% endfor %}{% else %}{{ m.content }}{% endif %};{% endfor %}"
             "{% if add_generation_prompt %}assistant:{% endif %}");
  const auto prepared = [&](const std::string& call, const std::string& tools) {
    write_text(folder / "in/a.jsonl",
               R"({"conversations": [{"from": "human", "value": "Q"}, {"from": "function_call", "value": ")" + call +
                   R"("}, {"from": "observation", "value": "9"}, {"from": "gpt", "value": "A"}], "tools": )" + tools +
                   "}");
    prepare_corpus(any_chats(folder, folder / "t.jinja"));
    return documents(folder / "out.h5").front();
  };
  const std::string call = R"({\"name\": \"f\", \"arguments\": {\"x\": 1}})";
  EXPECT_EQ(prepared(call, R"("[{\"name\": \"f\"}]")"), "<f>user:Q;assistant:[[f=1 ;]]tool:9;assistant:[[A;]]");
  EXPECT_EQ(prepared("[" + call + ", " + call + "]", R"([{"name": "g"}])"),
            "<g>user:Q;assistant:[[f=1 f=1 ;]]tool:9;assistant:[[A;]]");
  EXPECT_EQ(prepared(call, R"("")"), "user:Q;assistant:[[f=1 ;]]tool:9;assistant:[[A;]]");
  expect_error([&] { prepared("f(1)", "null"); }, {"a.jsonl:1: 'conversations'", "message 1", "got f(1)"});
  expect_error([&] { prepared(R"({\"name\": \"f\"})", "null"); },
               {"message 1: expected {\"name\": .., \"arguments\": ..}"});
}

TEST(ChatForms, MixedAndUnknownFormsAreRefused) {
  ChatFolder folder;
  const auto refused = [&](const std::string& record, const std::vector<std::string>& parts) {
    write_text(folder / "in/a.jsonl", "\n" + record + "\n");
    expect_error([&] { prepare_corpus(any_chats(folder)); }, parts);
  };
  refused(R"({"messages": [], "conversations": []})",
          {"a.jsonl:2: ", "messages and conversations", "--chat-field NAME"});
  refused(R"({"conversations": [], "instruction": "a", "output": "b"})", {"conversations and instruction"});
  refused(R"({"instruction": "a", "answer": "b"})",
          {"a.jsonl:2: ", "'messages', 'conversations', or 'instruction'", "instruction, answer"});
  refused(R"({"conversations": [{"from": "human", "value": "a"}, {"role": "assistant", "content": "b"}]})",
          {"a.jsonl:2: 'conversations'", "message 0 has 'from' and 'value'", "message 1", "Fix the record"});
  refused(R"({"conversations": [{"role": "user", "content": "a"}, {"from": "gpt", "value": "b"}]})",
          {"message 1 has 'from' and 'value'", "message 0"});
  refused(R"({"conversations": [{"from": "bing", "value": "a"}]})", {"message 0", "human, user, gpt", "got bing"});
  refused(R"({"conversations": [{"from": "human", "value": null}]})", {"message 0: expected a string"});
  refused(R"({"conversations": [{"from": "system", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "c"})",
          {"expected one system message"});
  refused(R"({"instruction": 3, "output": "b"})", {"'instruction'", "JSON number"});
  refused(R"({"instruction": "a", "output": ["b"]})", {"in 'output'", "a JSON array"});
  refused(R"({"instruction": "a", "output": "b", "history": [["c", "d"]]})", {"a.jsonl:2: 'instruction'", "history"});
  write_text(folder / "in/a.jsonl", "[\n{}]");
  expect_error([&] { prepare_corpus(any_chats(folder)); }, {"a.jsonl:1: ", "jq -c '.[]' ", " > a_lines.jsonl"});
}

TEST(FinetuneCorpus, BadRecordsAreNamed) {
  ChatFolder folder;
  const auto wrong = [&](const PrepareOptions& o, const std::string& record, const std::vector<std::string>& parts) {
    write_text(folder / "in/a.jsonl", "\n" + record + "\n");
    expect_error([&] { prepare_corpus(o); }, parts);
    EXPECT_FALSE(std::filesystem::exists(o.output));
  };
  wrong(folder.pairs(), R"({"prompt": "a"})",
        {"a.jsonl:2: ", "no 'completion'", "members are: prompt", "--completion-field"});
  wrong(folder.pairs(), R"({"prompt": 1, "completion": "b"})",
        {"a.jsonl:2: ", "'prompt'", "JSON number", "--prompt-field"});
  wrong(folder.chats(), R"({"conversations": []})", {"a.jsonl:2: ", "no 'messages'", "--chat-field without a NAME"});
  wrong(folder.chats(), R"({"turns": []})", {"a.jsonl:2: ", "no 'messages'", "list of messages with --chat-field"});
  wrong(folder.chats(), R"({"messages": [{"role": "user"}]})",
        {"a.jsonl:2: ", "message 0 has no 'content'", "Fix the record"});
  wrong(folder.chats(), R"({"messages": [{"role": "user", "content": "a"}]})",
        {"a.jsonl:2: ", "no message has the role 'assistant'"});
  wrong(folder.options(), R"({"messages": []})", {"a.jsonl:2: ", "no 'text'", "--chat-field reads conversations"});
  wrong(folder.options(), R"({"prompt": "", "completion": ""})",
        {"--prompt-field prompt --completion-field completion"});
}

TEST(FinetuneCorpus, RecordsMarkedAsNotToBeLearnedAreRefused) {
  ChatFolder folder;
  const std::string chat = R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])",
                    shared = R"("conversations": [{"from": "user", "value": "a"}, {"from": "gpt", "value": "b"}])",
                    alpaca = R"("instruction": "a", "output": "b")", pair = R"("prompt": "a", "completion": "b")";
  const auto prepared = [&](const std::string& record, const std::string& mark) {
    PrepareOptions o = record == pair ? folder.pairs() : any_chats(folder);
    write_text(folder / "in/a.jsonl", "{" + record + ", " + mark + "}\n");
    prepare_corpus(o);
    return documents(o.output);
  };
  for (const std::string& record : {chat, shared, alpaca, pair}) {
    for (const std::string mark : {"'weight': 0", "'train': false", "'training': false", "'loss_weight': 0.0"}) {
      std::string member = mark;
      std::ranges::replace(member, '\'', '"');
      expect_error([&] { prepared(record, member); }, {"a.jsonl:1: ", mark + " excludes the whole record"});
    }
    expect_error([&] { prepared(record, R"("weight": 0.5)"); }, {"a.jsonl:1: ", "in 'weight', got 0.5"});
    EXPECT_EQ(prepared(record, R"("weight": 1, "train": true, "training": null, "loss": 0, "mask": "User")"),
              prepared(record, R"("id": 7)"))
        << "a loss of 0 and NeMo's mask are facts of a record";
  }
}

TEST(FinetuneCorpus, ContradictoryOptionsAreRefused) {
  ChatFolder folder;
  write_text(folder / "in/a.jsonl", R"({"prompt": "a", "completion": "b"})");
  const auto wrong = [&](const std::function<void(PrepareOptions&)>& change, const std::vector<std::string>& parts) {
    PrepareOptions o = folder.pairs();
    change(o);
    expect_error([&] { prepare_corpus(o); }, parts);
  };
  wrong([](PrepareOptions& o) { o.members.text = "text"; }, {"--text-field", "give one of them"});
  wrong([](PrepareOptions& o) { o.members.completion = ""; }, {"--prompt-field requires --completion-field"});
  wrong([](PrepareOptions& o) { o.chat_template = "chatml"; }, {"--chat-template chatml", "--chat-field"});
  wrong([](PrepareOptions& o) { o.tokenizer = "chars"; }, {"--tokenizer chars", "tokenizer train --kind chars"});
  wrong([](PrepareOptions& o) { o.as_text = true; }, {"'prompt' and 'completion'", "--as-text"});
  wrong([](PrepareOptions& o) { o.document = "line"; }, {"--document line", "each record is a document"});
  wrong([](PrepareOptions& o) { o.members = {.messages = "m"}; }, {"the tokenizer bytes", "without a chat template"});
}

}  // namespace
}  // namespace ring
