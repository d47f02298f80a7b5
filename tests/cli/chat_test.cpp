// Chats with a small model that was trained on conversations: `generate --chat`, and `serve` over loopback.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "job/http_server.h"
#include "tests/cli/served_model.h"
#include "tests/http_client.h"
#include "tests/paths.h"

namespace ring {
namespace {

using nlohmann::json;
using test::http_post;
using Words = std::vector<std::string>;

// The model is trained to answer "yes" to every question.
class ChatTest : public test::ServedModel {
 protected:
  void prepare() override {
    std::ofstream file(folder_ / "in.jsonl");
    for (int i = 0; i < 200; ++i) {
      const json ask = {{"role", "user"}, {"content", std::string(1, static_cast<char>('a' + i % 26))}};
      const json say = {{"role", "assistant"}, {"content", "yes"}};
      file << json{{"messages", {ask, say}}}.dump() << "\n";
    }
    file.close();
    ok({"data", "prepare", "--input", path("in.jsonl"), "--chat-field", "--chat-template", "plain", "--tokenizer",
        "bytes", "--output", path("c.h5")});
  }
  Words train() const override { return {"train", path("c.yaml"), "train.steps=150", "optimizer.lr=1e-2"}; }

  // Runs `generate run --chat` with `input` on its standard input.
  test::Finished chat_with(const std::string& input, const Words& more = {}) const {
    std::ofstream(folder_ / "input") << input;
    Words words = {test::ring_binary(), "generate", path("run"), "--chat", "--temperature", "0", "--max-tokens", "12"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string file = path("input");
    return test::Process(words, {}, [file] { freopen(file.c_str(), "r", stdin) ? void() : _exit(9); }).wait();
  }
  test::HttpAnswer ask(const json& body) const { return http_post(at_, "/v1/chat/completions", body.dump()); }
};

json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

TEST_F(ChatTest, LinesAreAnswered) {
  EXPECT_EQ(chat_with("q\n\n \nz").output, "yes\nyes\n");  // blank lines are not questions
  EXPECT_EQ(chat_with("never read\n", {"--prompt", "b"}).output, "yes\n");
  EXPECT_EQ(chat_with("", {}).output, "");
  EXPECT_EQ(chat_with("q\n", {"--stop", "e"}).output, "y\n");
  // A question takes 26 tokens and an answer with its end 6, so that the third question exceeds the context of 64.
  const test::Finished long_one = chat_with("a\nb\nc\n");
  EXPECT_EQ(long_one.code, 1);
  EXPECT_NE(long_one.output.find("the conversation has "), std::string::npos) << long_one.output;
  EXPECT_NE(long_one.output.find("context is 64"), std::string::npos) << long_one.output;
  EXPECT_NE(long_one.output.find("--context N"), std::string::npos) << long_one.output;
  EXPECT_EQ(chat_with("a\n", {"--system", std::string(60, 's')}).code, 1) << "the system's text is part of it";
  const test::Finished other = chat_with("a\n", {"--chat-template", "llama2", "--system", "x"});
  EXPECT_EQ(other.code, 0) << other.output;
  EXPECT_NE(chat_with("a\n", {"--chat-template", "alpaca"}).output.find("the names are chatml"), std::string::npos);
}

TEST_F(ChatTest, TrainingEndsWithTheCommandToChat) {
  const test::Finished end = test::run_process({test::ring_binary(), "train", path("run")});
  EXPECT_NE(end.output.find("to chat: ringmaster generate " + path("run") + " --chat\n"), std::string::npos)
      << end.output;
}

TEST_F(ChatTest, WithoutATemplateTheErrorNamesTheRemedy) {
  std::filesystem::remove(folder_ / "run" / "chat_template.json");
  const test::Finished f = chat_with("a\n");
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.output.find("choose one with --chat-template"), std::string::npos) << f.output;
  EXPECT_EQ(chat_with("a\n", {"--chat-template", "plain"}).output, "yes\n");
}

TEST_F(ChatTest, ChatsAreServed) {
  if (!http_available()) GTEST_SKIP() << "this build has no HTTP";
  serve();
  const json once = json::parse(ask({{"messages", {user("k")}}, {"temperature", 0}}).body);
  EXPECT_EQ(once["object"], "chat.completion") << once;
  EXPECT_EQ(once["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(once["choices"][0]["message"]["content"], "yes");
  EXPECT_EQ(once["choices"][0]["finish_reason"], "stop");
  // "### user
  // k
  //
  // ### assistant
  // ", one token per byte
  EXPECT_EQ(once["usage"], json({{"prompt_tokens", 26}, {"completion_tokens", 3}, {"total_tokens", 29}}));
  const json cut = json::parse(ask({{"messages", {user("k")}}, {"temperature", 0}, {"max_tokens", 2}}).body);
  EXPECT_EQ(cut["choices"][0]["message"]["content"], "ye");
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
}

TEST_F(ChatTest, ChatsAreStreamed) {
  if (!http_available()) GTEST_SKIP() << "this build has no HTTP";
  serve();
  const test::HttpAnswer a = ask({{"messages", {user("k")}}, {"temperature", 0}, {"stream", true}});
  EXPECT_EQ(a.headers.at("Content-Type"), "text/event-stream");
  EXPECT_TRUE(a.body.ends_with("data: [DONE]\n\n")) << a.body;
  std::vector<json> deltas;
  json reason;
  for (std::size_t at = 0, end = 0; (end = a.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = a.body.substr(at, end - at);
    if (!event.starts_with("data: {")) continue;
    const json choice = json::parse(event.substr(6))["choices"][0];
    deltas.push_back(choice["delta"]);
    EXPECT_TRUE(reason.is_null()) << "only the last event has a reason";
    reason = choice["finish_reason"];
  }
  ASSERT_GE(deltas.size(), 3u) << a.body;
  EXPECT_EQ(deltas.front(), json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(deltas.back(), json::object());
  EXPECT_EQ(reason, "stop");
  std::string text;
  for (std::size_t i = 1; i + 1 < deltas.size(); ++i) text += deltas[i]["content"].get<std::string>();
  EXPECT_EQ(text, "yes");
}

TEST_F(ChatTest, WrongConversationsAreRefused) {
  if (!http_available()) GTEST_SKIP() << "this build has no HTTP";
  serve({"--chat-template", "llama2"});
  const auto refused = [&](const json& messages, const char* word) {
    const test::HttpAnswer a = ask({{"messages", messages}});
    const json error = json::parse(a.body)["error"];
    EXPECT_EQ(a.status, 400) << a.body;
    EXPECT_EQ(error["param"], "messages");
    EXPECT_NE(error["message"].get<std::string>().find(word), std::string::npos) << a.body;
  };
  refused(json::array({user(std::string(64, 'a'))}), "context is 64");
  refused(json::array({user("a"), {{"role", "system"}, {"content", "late"}}}), "llama2");
  refused(json::array(), "list of messages");
  EXPECT_EQ(ask({{"messages", {user("a")}}, {"max_tokens", 1}}).status, 200);
}

}  // namespace
}  // namespace ring
