// The parts of a conversation that count for the loss, and the formats that give its template.

#include "text/chat/conversation.h"
#include "data/chat_forms.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/load_chat_format.h"
#include "tests/data/corpus_case.h"
#include "tests/error_of.h"
#include "text/utf8.h"

namespace ring::chat {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTurns = R"([{"role": "system", "content": "Be brief."},
  {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
  {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Ciao."}])";

// Returns the text of a conversation, with [[ ]] around the parts that count.
std::string marked_text(const ConversationWriter& writer, const std::string& messages, const Json& given = nullptr) {
  std::string out;
  for (const Part& p : writer.parts(Json::parse(messages), given)) out += p.counts ? "[[" + p.text + "]]" : p.text;
  return out;
}

Format named(const std::string& name) { return {named_template(name), {{"bos_token", "<s>"}, {"eos_token", "</s>"}}}; }

TEST(Conversation, ARefusalQuotesWholeCharacters) {
  // The template omits the last character of a message if others follow.
  const Format format{R"({% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content[:-1] }})"
                      R"({% endfor %}{% if add_generation_prompt %}<assistant>{% endif %})",
                      {}};
  const ConversationWriter writer(format, "cut");
  for (int blanks = 0; blanks < 4; ++blanks) {
    const std::string text = std::string(static_cast<std::size_t>(blanks), 'x') + "\u4e2d\u6587\u00e9\U0001FAE8";
    const std::string messages = Json{
        {{"role", "user"}, {"content", text}},
        {{"role", "assistant"}, {"content", text + text + text}},
        {{"role", "user"}, {"content", text}},
        {{"role", "assistant"},
         {"content", text}}}.dump();
    const std::string error = error_of([&] { marked_text(writer, messages); });
    EXPECT_NE(error.find(" became '"), std::string::npos) << error;
    EXPECT_EQ(utf8::valid_prefix_length(error), error.size()) << error;
  }
}

// Expected texts are those that https://huggingface.co/docs/transformers/chat_templating and the models' cards publish.
TEST(Conversation, NamedTemplatesWriteThePublishedFormats) {
  const auto written = [](const char* name) { return marked_text(ConversationWriter(named(name), name), kTurns); };
  EXPECT_EQ(written("chatml"),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "[[Hello.<|im_end|>]]\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n[[Ciao.<|im_end|>]]\n");
  EXPECT_EQ(written("llama2"),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST][[ Hello. </s>]]<s>[INST] Bye [/INST][[ Ciao. </s>]]");
  EXPECT_EQ(
      written("llama3"),
      "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>"
      "\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[[Hello.<|eot_id|>]]<|start_header_id|>user"
      "<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[[Ciao.<|eot_id|>]]");
  EXPECT_EQ(written("mistral"), "<s>[INST] Be brief.\n\nHi[/INST][[ Hello.</s>]][INST] Bye[/INST][[ Ciao.</s>]]");
  EXPECT_EQ(written("plain"),
            "### system\nBe brief.\n\n### user\nHi\n\n### assistant\n[[Hello.</s>]]\n\n### user\nBye\n\n### assistant\n"
            "[[Ciao.</s>]]\n\n");
  EXPECT_EQ(named_template("vicuna"), nullptr);
}

// The template chatml without {% generation %}: turns are found by writing prefixes of the conversation.
constexpr const char* kUnmarked =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(Conversation, TurnsAreFoundWithoutMarks) {
  const ConversationWriter plain({kUnmarked, {}}, "t"), chatml(named("chatml"), "chatml");
  EXPECT_EQ(marked_text(plain, kTurns), marked_text(chatml, kTurns));
  const std::string blank = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": " b\n"}])";
  EXPECT_EQ(marked_text(plain, blank), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[[ b\n<|im_end|>]]\n");
  const ConversationWriter lines({"{% for m in messages %}{{ m.role }}: {{ m.content ~ '\n\n' }}{% endfor %}"
                                  "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
                                  {}},
                                 "t");
  EXPECT_EQ(marked_text(lines, blank), "user: a\n\nassistant: [[ b\n\n\n]]") << "nothing but blank space ends the turn";
}

// Returns the prompt for the next answer, with [[ ]] around the parts that count.
std::string marked_prompt(const ConversationWriter& writer, const std::string& messages) {
  std::string out;
  for (const Part& p : writer.prompt(Json::parse(messages), nullptr)) out += p.counts ? "[[" + p.text + "]]" : p.text;
  return out;
}

TEST(Conversation, APromptIsSplitLikeTheWholeConversation) {
  const ConversationWriter plain({kUnmarked, {}}, "t"), chatml(named("chatml"), "chatml");
  for (const ConversationWriter* writer : {&plain, &chatml}) {
    Json turns = Json::parse(kTurns);
    const std::string whole = marked_text(*writer, kTurns);
    turns.erase(turns.end() - 1);
    const std::string prompt = marked_prompt(*writer, turns.dump());
    EXPECT_EQ(prompt + "[[Ciao.<|im_end|>]]\n", whole);
    turns.erase(turns.end() - 1);  // the prompt now ends with an answer
    EXPECT_EQ(marked_prompt(*writer, turns.dump()),
              "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
              "[[Hello.<|im_end|>]]\n<|im_start|>assistant\n");
  }
  // A conversation that a corpus refuses can still be used as a prompt.
  const ConversationWriter forgets(
      {"{% for m in messages %}{{ '*' if loop.last }}{{ m.content }}{% endfor %}{{ '?' if add_generation_prompt }}",
       {}},
      "t");
  Json turns = Json::parse(kTurns);
  turns.erase(turns.end() - 1);
  EXPECT_EQ(marked_prompt(forgets, turns.dump()), "Be brief.HiHello.*Bye?");
}

Json long_talk(int answers) {
  Json turns = Json::array();
  for (int i = 0; i < answers; ++i) {
    turns.push_back({{"role", "user"}, {"content", "q"}});
    turns.push_back({{"role", "assistant"}, {"content", "a"}});
  }
  return turns;
}

// The answers of a conversation are found by writing it once more for each answer.
TEST(Conversation, AllRendersOfAConversationShareOneLimit) {
  const ConversationWriter writer({kUnmarked, {}}, "t", {.steps = 20'000});
  EXPECT_EQ(writer.parts(long_talk(10), nullptr).size(), 21u);
  EXPECT_NO_THROW(Template(kUnmarked, "t").render({{"messages", from_json(long_talk(100))}}, {.steps = 20'000}));
  expect_error([&] { writer.parts(long_talk(100), nullptr); }, {"exceeds 20000 steps"});
  EXPECT_EQ(writer.prompt(long_talk(100), nullptr).size(), 1u) << "as no corpus holds it";
}

TEST(Conversation, APromptIsShownBeforeItsAnswersAreFound) {
  const ConversationWriter writer({kUnmarked, {}}, "t");
  std::string seen;
  expect_error([&] { writer.prompt(long_talk(3), nullptr, [&](const std::string& text) { fail(seen = text, "!"); }); },
               {"<|im_start|>assistant\n!"});
  EXPECT_EQ(marked_prompt(writer, long_talk(3).dump()).size(), seen.size() + 3 * 4)
      << "the same text, with three marks";
}

TEST(Conversation, TheEndOfAnAnswerIsFound) {
  const auto end = [](const std::string& source) {
    return ConversationWriter({source, {{"eos_token", "</s>"}}}, "t").end_of_answer();
  };
  EXPECT_EQ(end(named_template("chatml")), "<|im_end|>");
  EXPECT_EQ(end(named_template("llama2")), "</s>");
  EXPECT_EQ(end(named_template("llama3")), "<|eot_id|>");
  EXPECT_EQ(end(named_template("plain")), "</s>");
  EXPECT_EQ(end(kUnmarked), "<|im_end|>");
  EXPECT_EQ(end("{% for m in messages %}{{ m.role }}: {{ m.content ~ '\n\n' }}{% endfor %}"), "\n\nuser:");
  EXPECT_EQ(end("{% for m in messages %}{{ m.content }}{% endfor %}"), "");
  EXPECT_EQ(end("nothing"), "");
}

TEST(Conversation, TemplatesThatRewriteThePastAreRefused) {
  const ConversationWriter forgets(
      {"{% for m in messages %}{{ m.role[0] }}{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
       "{{ m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}",
       {}},
      "t");
  EXPECT_EQ(marked_text(forgets, R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}])"),
            "uqa[[<think></think>r]]");
  expect_error([&] { marked_text(forgets, kTurns); },
               {"writes message 2 differently when other", "'<think>", "{% generation %}", "--chat-template"});
  const ConversationWriter counts({"{{ messages|length }}{{ messages[-1].content }}", {}}, "t");
  expect_error([&] { marked_text(counts, kTurns); }, {"writes the 2 messages before message 2 differently"});
  expect_error([&] { marked_text(forgets, R"([{"role": "assistant", "content": "r"}])"); },
               {"begins with an assistant"});
}

TEST(Conversation, MalformedConversationsAreNamed) {
  const ConversationWriter writer(named("chatml"), "chatml");
  const auto wrong = [&](const std::string& messages, const std::string& part) {
    expect_error([&] { marked_text(writer, messages); }, {part});
  };
  wrong("{}", "expected a list of messages, got a JSON object");
  wrong("[]", "is empty");
  wrong("[1]", "message 0: expected an object with 'role' and 'content', got a JSON number");
  wrong(R"([{"content": "a"}])", "message 0 has no 'role'");
  wrong(R"([{"role": 1, "content": "a"}])", "expected a string in 'role', got a JSON number");
  wrong(R"([{"role": "user", "content": "a"}, {"role": "assistant"}])", "message 1 has no 'content'");
  wrong(R"([{"role": "user", "content": "a"}])", "no message has the role 'assistant'");
  const ConversationWriter strict(named("llama2"), "llama2");
  expect_error(
      [&] { marked_text(strict, R"([{"role": "critic", "content": "a"}, {"role": "assistant", "content": "b"}])"); },
      {"llama2:", "refuses this conversation", "no 'critic'"});
}

constexpr const char* kCalls = R"([{"role": "user", "content": "Rain?"},
  {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": ARGUMENTS}}]},
  {"role": "tool", "content": "no"}, {"role": "assistant", "content": "Dry."}])";

std::string calls_with(const std::string& arguments) {
  std::string text = kCalls;
  return text.replace(text.find("ARGUMENTS"), 9, arguments);
}

// Texts that a template cannot write are refused. Python would print None, its notation for a list, or nothing.
TEST(Conversation, ValuesThatATemplateCannotWriteAreRefused) {
  const ConversationWriter chatml(named("chatml"), "chatml");
  const auto wrong = [](const ConversationWriter& writer, const std::string& messages,
                        const std::vector<std::string>& parts) {
    expect_error([&] { marked_text(writer, messages); }, parts);
  };
  const auto answer = [](const std::string& content) {
    return R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": )" + content + "}]";
  };
  wrong(chatml, answer("null"), {"message 1 has no 'content': it is null"});
  wrong(chatml, answer("5"), {"message 1", "in 'content', got a JSON number"});
  wrong(chatml, answer("true"), {"in 'content', got a JSON boolean"});
  wrong(chatml, answer(R"({"text": "a"})"), {"in 'content', got a JSON object"});
  wrong(chatml, answer(R"([{"type": "text", "text": "a"}, {"type": "image", "url": "x"}])"),
        {"message 1: part 1 of its 'content' is not text"});
  wrong(chatml, calls_with("{}"), {"message 1 has 'tool_calls'", "does not write it", "--chat-template"});
  std::string missing = calls_with("{}");
  missing.erase(missing.find("\"content\": null, "), 17);
  wrong(chatml, missing, {"message 1 has 'tool_calls'"});
  for (const char* content : {"{{ m.content }}", "{{ '' ~ m.content }}"})
    wrong({{str("{% for m in messages %}", content, "{{ m.tool_calls }}{% endfor %}"), {}}, "t"}, calls_with("{}"),
          {"would be written as None"});
  for (const char* number : {"9223372036854775808", "100000000000000000000", "-9223372036854775809"})
    wrong({{"{% for m in messages %}{{ m }}{% endfor %}", {}}, "t"},
          str(R"([{"role": "assistant", "content": "a", "n": )", number, "}]"), {"too large"});
}

TEST(Conversation, FieldsThatTheTemplateOmitsAreRefused) {
  const ConversationWriter chatml(named("chatml"), "chatml");
  expect_error(
      [&] {
        marked_text(chatml, R"([{"role": "user", "content": "a"},
                           {"role": "assistant", "content": "b", "reasoning_content": "since"}])");
      },
      {"message 1 has 'reasoning_content'", "does not write it", "--chat-template"});
  const auto chat = nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": ""}])");
  expect_error(
      [&] {
        marked_text(chatml, R"([{"role": "user", "content": "a"},
                           {"role": "assistant", "content": "b", "reasoning": "since"}])");
      },
      {"message 1 has 'reasoning'", "does not write it"});
  expect_error(
      [&] {
        marked_text(chatml, R"([{"role": "user", "content": "a"},
                           {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}])");
      },
      {"message 1 has 'function_call'", "give it as 'tool_calls'"});
  expect_error(
      [] {
        chat_variables({{"messages", {{"role", "user"}}}, {"functions", {{{"name", "f"}}}}});
      },
      {"'functions'", "give them as 'tools'"});
  const auto tools = nlohmann::ordered_json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  EXPECT_EQ(chatml.parts(chat, {{"tools", nlohmann::ordered_json::array()}}).size(), 3u);
  expect_error([&] { chatml.parts(chat, {{"tools", tools}}); }, {"the record has 'tools'", "does not write it"});
  expect_error([&] { chatml.prompt(chat, {{"tools", tools}}); }, {"the record has 'tools'"});
  expect_error([&] { chatml.parts(chat, {{"documents", tools}}); }, {"the record has 'documents'"});
  for (const char* key : {"audio", "images", "thinking_blocks", "reasoning_details"})
    expect_error(
        [&] {
          marked_text(chatml, str(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", ")", key,
                                  R"(": [{"id": 1}]}])"));
        },
        {"message 1 has '" + std::string(key) + "'", "does not write it"});
}

// TRL passes these variables to apply_chat_template().
TEST(Conversation, ARecordGivesVariablesToTheTemplate) {
  const ConversationWriter thinks({"{% for m in messages %}{{ m.role }}: {{ m.content }}"
                                   "{% if m.role == 'user' and enable_thinking is defined and not enable_thinking %}"
                                   " /no_think{% endif %}{{ '\\n' }}{% endfor %}"
                                   "{% if add_generation_prompt %}assistant: {% endif %}",
                                   {}},
                                  "t");
  const Json record = {{"messages", Json::parse(R"([{"role": "user", "content": "a"},
                                                    {"role": "assistant", "content": "b"}])")},
                       {"chat_template_kwargs", {{"enable_thinking", false}}}};
  std::string text;
  for (const Part& p : thinks.parts(record["messages"], chat_variables(record))) text += p.text;
  EXPECT_EQ(text, "user: a /no_think\nassistant: b\n");
  EXPECT_EQ(thinks.parts(record["messages"], nullptr).front().text, "user: a\nassistant: ");
  expect_error([&] { thinks.parts(record["messages"], {{"messages", 1}}); }, {"'messages' is set automatically"});
  expect_error([] { chat_variables({{"chat_template_kwargs", 3}}); }, {"expected an object in 'chat_template_kwargs'"});
  expect_error(
      [] {
        chat_variables({{"tools", {1}}, {"chat_template_kwargs", {{"tools", {1}}}}});
      },
      {"'tools' both in and outside 'chat_template_kwargs'"});
  for (const char* media : {"images", "videos", "audios"})
    expect_error([&] { chat_variables({{media, {"a.png"}}}); }, {str("the record has '", media, "'")});
  EXPECT_TRUE(chat_variables({{"images", Json::array()}, {"source", "x"}}).empty());
  // A template would write the characters of a string, and the keys of an object.
  for (const char* name : {"tools", "documents"})
    for (const char* value : {R"({"name": "f"})", R"([{"name": "f"}, "g"])", R"(["{}"])", "3", "true"})
      expect_error([&] { chat_variables({{name, Json::parse(value)}}); }, {"expected", "objects", name});
  for (const char* text : {"{\"name\": \"f\"}", "[1]", "f(x)"})
    expect_error([&] { chat_variables({{"tools", text}}); }, {"objects", "'tools'"});
  expect_error([] { chat_variables({{"chat_template_kwargs", {{"tools", "f"}}}}); }, {"list of objects in 'tools'"});
  EXPECT_TRUE(chat_variables({{"tools", "null"}}).empty());
}

// The spellings are those of text/chat/marks.h: "weight" is OpenAI's, "train" and "training" are Axolotl's, and so on.
TEST(Conversation, MessagesMarkedAsNotToBeLearnedDoNotCount) {
  const ConversationWriter chatml(named("chatml"), "chatml");
  const auto chat = [](const std::string& first, const std::string& second) {
    return R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", )" + first +
           R"(}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", )" + second + "}]";
  };
  const std::string a = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
                    c = "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n";
  for (const char* mark : {R"("weight": 0)", R"("weight": 0.0)", R"("train": false)", R"("training": false)",
                           R"("train": null, "training": 0)", R"("loss": false)", R"("loss_weight": 0.0)",
                           R"("loss_scale": 0)", R"("masked": true)", R"("mask": 1)"})
    EXPECT_EQ(marked_text(chatml, chat(mark, R"("weight": 1, "train": true)")),
              a + "b<|im_end|>" + c + "[[d<|im_end|>]]\n")
        << mark;
  const auto wrong = [&](const ConversationWriter& writer, const std::string& messages, const std::string& part) {
    expect_error([&] { marked_text(writer, messages); }, {part});
  };
  wrong(chatml, chat(R"("weight": 0.5)", R"("weight": 1)"),
        "message 1: expected 0, 1, true or false in 'weight', got 0.5");
  wrong(chatml, chat(R"("train": "no")", R"("weight": 1)"), "expected 0, 1, true or false in 'train', got \"no\"");
  wrong(chatml, chat(R"("weight": 0)", R"("train": false)"), "every assistant message");
  const std::string all = R"("mask": false, "masked": 0, "loss": true, "training": 1, "train_detail": [])";
  EXPECT_EQ(marked_text(chatml, chat(all, R"("train_detail": null)")), a + "[[b<|im_end|>]]" + c + "[[d<|im_end|>]]\n");
  wrong(chatml, chat(R"("train_detail": [{"begin_offset": 0, "end_offset": 1, "train": false}])", R"("weight": 1)"),
        "message 1: 'train_detail' selects parts of its text for training, but only whole messages");
  wrong(chatml,
        R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": [)"
        R"({"type": "text", "text": "b"}, {"type": "text", "text": "c", "train": false}]}])",
        "message 1: 'train' excludes a part of its 'content' from training");
  const auto user = [](const std::string& mark) {
    return R"([{"role": "user", "content": "a", )" + mark + R"(}, {"role": "assistant", "content": "b"}])";
  };
  for (const char* mark : {R"("train": true)", R"("training": 1)", R"("loss": true)", R"("mask": false)"})
    wrong(chatml, user(mark), " selects a message of the role \"user\" for training");
  wrong(chatml, user(R"("train_detail": [{"begin_offset": 0, "end_offset": 1, "train": true}])"),
        "message 0: 'train_detail' selects parts");
  for (const char* mark : {R"("train": false)", R"("weight": 0)", R"("masked": true)", R"("loss": null)"})
    EXPECT_EQ(marked_text(chatml, user(mark)), a + "[[b<|im_end|>]]\n") << mark;
  wrong({{"{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", {}}, "t"},
        chat(R"("weight": 0)", R"("weight": 1)"), "marks 4 texts with {% generation %}, but the conversation has 2");
  const ConversationWriter turns(
      {"{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>"
       "{% endif %}",
       {}},
      "t");
  EXPECT_EQ(marked_text(turns, chat(R"("weight": 0)", R"("weight": 1)")),
            "<user>a;<assistant>b;<user>c;<assistant>[[d;]]");
}

TEST(Conversation, TextsOfPartsAreWritten) {
  const std::string parts = R"([{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
      {"role": "assistant", "content": [{"type": "text", "text": "Y"}, {"type": "text", "text": "o"}]}])";
  const ConversationWriter chatml(named("chatml"), "chatml");
  EXPECT_EQ(marked_text(chatml, parts), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>]]\n");
  const ConversationWriter reads(
      {"{% for m in messages %}{% generation %}{% if m.content is string %}{{ m.content }}{% else %}"
       "{% for p in m.content %}{{ p.text }}{{ '+' if not loop.last }}{% endfor %}{% endif %}{% endgeneration %}"
       "{% endfor %}",
       {}},
      "t");
  EXPECT_EQ(marked_text(reads, parts), "[[Hi]][[Y+o]]") << "a template that reads parts gets them";
  const std::string strings = R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}])";
  // The first loop is from Idefics3, the second from LLaVA-NeXT. Expected values are those of jinja2 with contents in
  // parts.
  for (const std::string loop :
       {"{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }};{% endif %}{% endfor %}",
        "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] }};{% endfor %}"}) {
    const ConversationWriter only(
        {"{% for m in messages %}{% generation %}" + loop + "{% endgeneration %}{% endfor %}", {}}, "t");
    EXPECT_EQ(marked_text(only, parts), "[[Hi;]][[Y;o;]]") << loop;
    EXPECT_EQ(marked_text(only, strings), "[[Hi;]][[Yo;]]") << "a template that reads parts alone gets texts as parts";
  }
  const ConversationWriter repr(
      {"{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", {}}, "t");
  EXPECT_EQ(marked_text(repr, parts), "[[Hi]][[Yo]]") << "a list that would be written as Python's is joined";
}

// The expected text is json.dumps() of the object, not of its text.
TEST(Conversation, ArgumentsInJsonTextAreParsed) {
  const std::string source =
      "{% for m in messages %}{% generation %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
      "<{{ WRITTEN }}>{% endfor %}{% endgeneration %}{% endfor %}";
  const auto written = [&](const std::string& how, const std::string& arguments) {
    std::string text = source;
    text.replace(text.find("WRITTEN"), 7, how);
    return marked_text(ConversationWriter({text, {}}, "t"), calls_with(arguments));
  };
  const std::string as_object = R"([[Rain?]][[<{"city": "Bern", "n": 1}>]][[no]][[Dry.]])";
  EXPECT_EQ(written("c.function.arguments|tojson", R"({"city": "Bern", "n": 1})"), as_object);
  EXPECT_EQ(written("c.function.arguments|tojson", R"("{\"city\": \"Bern\", \"n\": 1}")"), as_object);
  EXPECT_EQ(written("c.function.arguments", R"("{\"city\":1}")"), R"([[Rain?]][[<{"city":1}>]][[no]][[Dry.]])")
      << "a template that writes the text as it is gets the text";
  EXPECT_EQ(written("c.function.arguments|tojson", R"("no JSON")"), R"([[Rain?]][[<"no JSON">]][[no]][[Dry.]])");
}

// If the content is blank, only the end mark after it counts, without the blank space that follows (docs/finetune.md).
TEST(Conversation, OnlyTheMarkCountsIfTheContentIsBlank) {
  const ConversationWriter writer(
      {"{% for m in messages %}{{ '<|im_start|>' + m.role }}{% if m.content %}{{ '\n' + m.content }}{% endif %}"
       "{% for c in m.tool_calls or [] %}{{ '\n(' + c.function.name + ')' }}{% endfor %}{{ '<|im_end|>\n' }}"
       "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
       {}},
      "t");
  const std::string begin = "<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n";
  const std::string end = "<|im_end|>]]\n<|im_start|>tool\nno<|im_end|>\n<|im_start|>assistant\n[[Dry.<|im_end|>]]\n";
  EXPECT_EQ(marked_text(writer, calls_with("{}")), begin + "[[(f)" + end);
  std::string empty = calls_with("{}"), blank = R"([{"role": "user", "content": "a"},
                                                   {"role": "assistant", "content": " \t "}])";
  empty.replace(empty.find("null"), 4, "\"\"");
  EXPECT_EQ(marked_text(writer, empty), begin + "[[(f)" + end);
  EXPECT_EQ(marked_text(writer, blank), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[[ \t <|im_end|>]]\n");
}

TEST(Conversation, ToolsReachTheTemplate) {
  const ConversationWriter writer(
      {"{{ tools|tojson }}{% generation %}{{ messages[0].content }}{% endgeneration %}", {}}, "t");
  const std::string one = R"([{"role": "assistant", "content": "x"}])";
  EXPECT_EQ(marked_text(writer, one), "null[[x]]");
  EXPECT_EQ(marked_text(writer, one, {{"tools", Json::parse(R"([{"b": 1, "a": 2}])")}}), R"([{"b": 1, "a": 2}][[x]])");
}

// jinja2 3.1 compiles all of these and writes the same texts with trim_blocks and lstrip_blocks, as set by
// transformers.
TEST(ChatFormat, PlainJinjaHasNoGenerationAndWritesTheSame) {
  EXPECT_EQ(
      without_generation_tags("{%- generation -%}a{% endgeneration %}{%+generation%}{%-endgeneration+%} generation"),
      "{%- if true -%}a{% endif %}{%+if true%}{%-endif+%} generation");
  const Json messages = Json::parse(kTurns);
  for (const char* name : {"chatml", "llama2", "llama3", "mistral", "plain"}) {
    Format plain = named(name);
    plain.source = without_generation_tags(plain.source);
    EXPECT_EQ(plain.source.find("generation %}{{"), std::string::npos) << name;
    const auto text = [&](const Format& f) {
      std::string out;
      for (const Part& p : ConversationWriter(f, name).prompt(messages, nullptr)) out += p.text;
      return out;
    };
    EXPECT_EQ(text(plain), text(named(name))) << name;
  }
}

TEST(ChatFormat, PlainJinjaAcceptsTemplatesOfAnyForm) {
  const std::string blanks(1 << 20, ' ');
  EXPECT_EQ(without_generation_tags("{%" + blanks + "generation" + blanks + "%}"),
            "{%" + blanks + "if true" + blanks + "%}");
  for (const std::string& text : {"{%" + blanks, "{%-" + blanks + "generation", std::string("{%generation"),
                                  std::string("{%"), std::string("{%+"), std::string("{% generations %}")})
    EXPECT_EQ(without_generation_tags(text), text);
}

TEST(ChatFormat, IsReadFromPublishedFiles) {
  const Format f = published_format(R"({"chat_template": "T", "bos_token": {"content": "<b>"}, "eos_token": "<e>",
                                        "pad_token": null, "added_tokens_decoder": {}})",
                                    "c.json", "");
  EXPECT_EQ(f.source, "T");
  EXPECT_EQ(f.tokens, (std::vector<std::pair<std::string, std::string>>{{"bos_token", "<b>"}, {"eos_token", "<e>"}}));
  EXPECT_EQ(published_format(R"({"chat_template": "T"})", "c.json", "J").source, "J");
  EXPECT_EQ(published_format("", "c.json", "").source, "");
  EXPECT_EQ(
      published_format(R"({"chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]})",
                       "c.json", "")
          .source,
      "D");
  const Format again = Format::from_json(f.to_json(), "x");
  EXPECT_EQ(again.source, f.source);
  EXPECT_EQ(again.tokens, f.tokens);
  // A template that is given replaces one that cannot be read.
  EXPECT_EQ(published_format(R"({"chat_template": 1})", "c.json", "J").source, "J");
  expect_error([] { published_format("{", "c.json", ""); }, {"c.json cannot be read as JSON"});
  expect_error([] { published_format(R"({"chat_template": 1})", "c.json", ""); },
               {"c.json: chat_template is a JSON number"});
}

TEST(ChatFormat, IsChosenByNameFileOrTokenizer) {
  TempFolder folder;
  const auto bytes = bytes_tokenizer();
  EXPECT_EQ(load_chat_format("chatml", "bytes", *bytes).source, named_template("chatml"));
  EXPECT_EQ(load_chat_format("chatml", "bytes", *bytes).tokens.front().second, "<|endoftext|>");
  write_text(folder / "mine.jinja", "M");
  EXPECT_EQ(load_chat_format(folder / "mine.jinja", "bytes", *bytes).source, "M");
  write_text(folder / "tokenizer_config.json", R"({"chat_template": "T", "eos_token": "<e>"})");
  EXPECT_EQ(load_chat_format("", folder / "tokenizer.json", *bytes).source, "T");
  write_text(folder / "chat_template.jinja", "J");
  const Format beside = load_chat_format("", folder / "tokenizer.json", *bytes);
  EXPECT_EQ(beside.source, "J");
  EXPECT_EQ(beside.tokens.front().second, "<e>");
  write_text(folder / "chat_template.json", Format{"K", {}}.to_json());  // a run writes this file; it takes precedence
  EXPECT_EQ(load_chat_format("", folder / "tokenizer.rmt", *bytes).source, "K");
  expect_error([&] { load_chat_format("", "bytes", *bytes); },
               {"comes without a chat template", "chatml, llama2, llama3"});
  expect_error([&] { load_chat_format("alpaca", "bytes", *bytes); },
               {"--chat-template alpaca", "neither a file", "chatml"});
}

TEST(ChosenTemplate, AnUnreadableFileIsNotReportedAsMissing) {
  TempFolder folder;
  const std::string loop = folder / "loop";
  std::filesystem::create_symlink("loop", loop);
  expect_error([&] { load_chat_format(loop, "bytes", *bytes_tokenizer()); },
               {"--chat-template " + loop + ": Too many levels of symbolic links"});
  expect_error([&] { load_chat_format(folder / "none", "bytes", *bytes_tokenizer()); }, {"neither a file"});
}

}  // namespace
}  // namespace ring::chat
