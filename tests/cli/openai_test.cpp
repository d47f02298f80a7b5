// Requests of OpenAI's protocol, mostly invalid ones, and the replies.
#include "cli/openai.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ring {
namespace {

using nlohmann::json;

const ServeLimits kLimits{"m", 100};

ApiError refused(const std::string& body, bool chat = false) {
  try {
    chat ? parse_chat(body, kLimits) : parse_completion(body, kLimits);
  } catch (const ApiError& e) {
    return e;
  }
  ADD_FAILURE() << "accepted: " << body;
  return {0, ""};
}

TEST(OpenAi, ReadsACompletion) {
  const CompletionRequest r = parse_completion(
      R"({"model":"m","prompt":["Once"],"max_tokens":7,"temperature":0,"top_p":0.5,"seed":9,
          "repetition_penalty":1.5,"stop":["a","b"],
          "stream":true,"stream_options":{"include_usage":true},"n":1,"user":"u","presence_penalty":0.0,"echo":null})",
      kLimits);
  EXPECT_EQ(r.prompt, "Once");
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.sampling.temperature, 0);
  EXPECT_EQ(r.sampling.top_p, 0.5);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(r.sampling.seed, 9u);
  EXPECT_EQ(r.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(r.stream && r.usage && !r.chat);
  const CompletionRequest usual = parse_completion(R"({"prompt":"x"})", kLimits);
  EXPECT_EQ(usual.max_tokens, 100);  // the limit, which is lower than the default
  EXPECT_EQ(usual.sampling.temperature, 1);
}

TEST(OpenAi, ARequestWithoutSamplingTakesThatOfTheModel) {
  ServeLimits limits = kLimits;
  limits.usual = {.temperature = 0.6, .top_k = 20, .top_p = 0.9, .repetition_penalty = 1.1};
  const Sampling usual = parse_completion(R"({"prompt": "a"})", limits).sampling;
  EXPECT_EQ(usual.temperature, 0.6);
  EXPECT_EQ(usual.top_k, 20);
  EXPECT_EQ(usual.top_p, 0.9);
  EXPECT_EQ(usual.repetition_penalty, 1.1);
  const Sampling said = parse_completion(R"({"prompt": "a", "temperature": 1, "top_k": 0})", limits).sampling;
  EXPECT_EQ(said.temperature, 1);
  EXPECT_EQ(said.top_k, 0);
  EXPECT_EQ(said.top_p, 0.9);
}

TEST(OpenAi, ReadsAChat) {
  const CompletionRequest r = parse_chat(
      R"({"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hi"},
          {"type":"text","text":"!"}]},{"role":"assistant","content":"Yes?","refusal":null,"annotations":[]},
          {"role":"user","content":"Bye"}],"max_tokens":9,"max_completion_tokens":5,"stop":".","stream":true,
          "modalities":["text"]})",
      kLimits);
  std::string said;
  for (const ChatMessage& m : r.messages) said += m.role + ":" + m.content + "\n";
  EXPECT_EQ(said, "system:Be brief.\nuser:Hi!\nassistant:Yes?\nuser:Bye\n");
  EXPECT_TRUE(r.chat && r.stream);
  EXPECT_EQ(r.stops, std::vector<std::string>{"."});
  EXPECT_EQ(r.max_tokens, 5);
  EXPECT_EQ(parse_chat(R"({"messages":[{"role":"user","content":"a"}],"max_tokens":9})", kLimits).max_tokens, 9);
}

struct Wrong {
  const char *body, *param;
};
void PrintTo(const Wrong& w, std::ostream* out) { *out << w.body; }
class OpenAiRefuses : public testing::TestWithParam<Wrong> {};

TEST_P(OpenAiRefuses, ARequestByTheNameOfItsParameter) {
  const ApiError e = refused(GetParam().body);
  EXPECT_EQ(e.status, 400) << e.what();
  EXPECT_EQ(e.param, GetParam().param) << e.what();
}

INSTANTIATE_TEST_SUITE_P(
    , OpenAiRefuses,
    testing::Values(
        Wrong{"", ""}, Wrong{"{", ""}, Wrong{"[]", ""}, Wrong{"{}", "prompt"}, Wrong{R"({"prompt":3})", "prompt"},
        Wrong{R"({"prompt":["a","b"]})", "prompt"}, Wrong{R"({"prompt":[1,2]})", "prompt"},
        Wrong{R"({"prompt":"x","max_tokens":0})", "max_tokens"},
        Wrong{R"({"prompt":"x","max_tokens":101})", "max_tokens"},
        Wrong{R"({"prompt":"x","max_tokens":1.5})", "max_tokens"},
        Wrong{R"({"prompt":"x","max_tokens":18446744073709551615})", "max_tokens"},
        Wrong{R"({"prompt":"x","temperature":-1})", "temperature"}, Wrong{R"({"prompt":"x","temperature":1e999})", ""},
        Wrong{R"({"prompt":"x","temperature":"hot"})", "temperature"}, Wrong{R"({"prompt":"x","top_p":1.01})", "top_p"},
        Wrong{R"({"prompt":"x","repetition_penalty":0})", "repetition_penalty"},
        Wrong{R"({"prompt":"x","seed":-1})", "seed"}, Wrong{R"({"prompt":"x","stop":""})", "stop"},
        Wrong{R"({"prompt":"x","stop":[1]})", "stop"}, Wrong{R"({"prompt":"x","stop":["a","b","c","d","e"]})", "stop"},
        Wrong{R"({"prompt":"x","stream":1})", "stream"},
        Wrong{R"({"prompt":"x","stream_options":true})", "stream_options"}, Wrong{R"({"prompt":"x","n":2})", "n"},
        Wrong{R"({"prompt":"x","logprobs":3})", "logprobs"}, Wrong{R"({"prompt":"x","echo":true})", "echo"},
        Wrong{R"({"prompt":"x","frequency_penalty":0.5})", "frequency_penalty"},
        Wrong{R"({"prompt":"x","tools":[]})", "tools"}, Wrong{R"({"prompt":"x","messages":[]})", "messages"}));

TEST(OpenAi, RefusesWrongChats) {
  for (const char* body :
       {"{}", R"({"messages":[]})", R"({"messages":["x"]})", R"({"messages":[{"role":"user"}]})",
        R"({"messages":[{"role":"tool","content":"x"}]})", R"({"messages":[{"role":3,"content":"x"}]})",
        R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
        R"({"messages":[{"role":"user","content":7}]})", R"({"messages":[{"role":"user","content":null}]})",
        R"({"messages":[{"role":"user","content":"x","name":"Eve"}]})",
        R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"1"}]}]})"})
    EXPECT_EQ(refused(body, true).param, "messages") << body;
  const std::string begin = R"({"messages":[{"role":"user","content":"x"}],)";
  for (const std::string key : {"prompt", "echo", "tools", "n", "modalities", "max_completion_tokens", "logprobs"})
    EXPECT_EQ(refused(begin + "\"" + key + "\":[1]}", true).param, key);
  EXPECT_EQ(refused(begin + R"("model":"other"})", true).status, 404);
}

// Code that walks such a body is recursive.
TEST(OpenAi, RefusesABodyThatIsNestedTooDeeply) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string& body : {"{\"prompt\":\"x\",\"model\":" + deep + "}", deep})
    EXPECT_NE(std::string(refused(body).what()).find("levels deep"), std::string::npos);
  for (const std::string member : {"role", "content"})
    EXPECT_EQ(refused("{\"messages\":[{\"" + member + "\":" + deep + "}]}", true).status, 400);
}

TEST(OpenAi, RefusesABodyWithTooManyEntries) {
  std::string stops = "0";
  for (int i = 0; i < 100'000; ++i) stops += ",0";
  const ApiError e = refused("{\"prompt\":\"x\",\"stop\":[" + stops + "]}");
  EXPECT_EQ(e.status, 400);
  EXPECT_NE(std::string(e.what()).find("more than 100000 entries"), std::string::npos) << e.what();
}

TEST(OpenAi, RefusesUnknownModels) {
  EXPECT_EQ(refused(R"({"model":"other","prompt":"x"})").status, 404);
  const json error = json::parse(error_json(404, "no \xff", "model"));
  EXPECT_EQ(error["error"]["code"], "model_not_found");
  EXPECT_EQ(error["error"]["type"], "invalid_request_error");
}

TEST(OpenAi, AStreamEndsWithDone) {
  CompletionRequest r;
  r.usage = true;
  const CompletionReply reply(r, "m");
  const std::string piece = reply.text_event("a\n\nb");
  EXPECT_EQ(piece.find("\n\n"), piece.size() - 2);  // there is one event
  EXPECT_EQ(json::parse(piece.substr(6))["choices"][0]["text"], "a\n\nb");
  const std::string last = reply.closing_events("length", {3, 4});
  EXPECT_NE(last.find(R"("finish_reason":"length")"), std::string::npos);
  EXPECT_NE(last.find(R"("total_tokens":7)"), std::string::npos);
  EXPECT_TRUE(last.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(reply.opening_event(), "");
  const json whole = json::parse(CompletionReply({}, "m").full_reply("t", "stop", {1, 2}));
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["choices"][0]["text"], "t");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 2);
}

// OpenAI's API reference: a delta with the role, then pieces, then an empty delta with the finish reason.
TEST(OpenAi, AChatIsStreamedInDeltas) {
  CompletionRequest r;
  r.chat = r.usage = true;
  const CompletionReply reply(r, "m");
  const json first = json::parse(reply.opening_event().substr(6)), piece = json::parse(reply.text_event("a").substr(6));
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(piece["choices"][0]["delta"], json({{"content", "a"}}));
  EXPECT_TRUE(piece["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(piece["id"], first["id"]);
  const std::string last = reply.closing_events("stop", {3, 4});
  const json reason = json::parse(last.substr(6, last.find("\n\n") - 6))["choices"][0];
  EXPECT_EQ(reason["delta"], json::object());
  EXPECT_EQ(reason["finish_reason"], "stop");
  EXPECT_NE(last.find(R"("choices":[],"usage":{"prompt_tokens":3)"), std::string::npos) << last;
  const json whole = json::parse(reply.full_reply("t", "length", {1, 2}));
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0]["message"], json({{"role", "assistant"}, {"content", "t"}, {"refusal", nullptr}}));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
}

}  // namespace
}  // namespace ring
