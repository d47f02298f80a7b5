// Requests of OpenAI's protocol, above all wrong ones, and the replies.
#include "cli/openai.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ring {
namespace {

using nlohmann::json;

const ServeLimits kLimits{"m", 100};

ApiError refused(const std::string& body) {
  try {
    parse_completion(body, kLimits);
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
  EXPECT_TRUE(r.stream && r.usage);
  const CompletionRequest usual = parse_completion(R"({"prompt":"x"})", kLimits);
  EXPECT_EQ(usual.max_tokens, 100);  // the limit, which is less than the default
  EXPECT_EQ(usual.sampling.temperature, 1);
}

struct Wrong {
  const char *body, *param;
};
void PrintTo(const Wrong& w, std::ostream* out) { *out << w.body; }
class OpenAiRefuses : public testing::TestWithParam<Wrong> {};

TEST_P(OpenAiRefuses, ByName) {
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

TEST(OpenAi, RefusesOtherModels) {
  EXPECT_EQ(refused(R"({"model":"other","prompt":"x"})").status, 404);
  const json error = json::parse(error_json(404, "no \xff", "model"));
  EXPECT_EQ(error["error"]["code"], "model_not_found");
  EXPECT_EQ(error["error"]["type"], "invalid_request_error");
}

TEST(OpenAi, AStreamIsEventsThatEnd) {
  CompletionRequest r;
  r.usage = true;
  const CompletionReply reply(r, "m");
  const std::string piece = reply.piece("a\n\nb");
  EXPECT_EQ(piece.find("\n\n"), piece.size() - 2);  // one event
  EXPECT_EQ(json::parse(piece.substr(6))["choices"][0]["text"], "a\n\nb");
  const std::string last = reply.last("length", {3, 4});
  EXPECT_NE(last.find(R"("finish_reason":"length")"), std::string::npos);
  EXPECT_NE(last.find(R"("total_tokens":7)"), std::string::npos);
  EXPECT_TRUE(last.ends_with("data: [DONE]\n\n"));
  const json whole = json::parse(CompletionReply({}, "m").whole("t", "stop", {1, 2}));
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["choices"][0]["text"], "t");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 2);
}

}  // namespace
}  // namespace ring
