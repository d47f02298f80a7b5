// `ringmaster serve` with a small trained model, over loopback.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cli/text_generation.h"
#include "core/check.h"
#include "job/http_server.h"
#include "tests/cli/served_model.h"
#include "tests/error_of.h"
#include "tests/http_client.h"

namespace ring {
namespace {

using nlohmann::json;
using test::http_get;
using test::http_post;
using test::ServedModel;

class ServeTest : public ServedModel {
 protected:
  void SetUp() override {
    if (!http_available()) GTEST_SKIP() << "this build has no HTTP";
    ServedModel::SetUp();
  }
  // Waits until the server computes: otherwise it uses no CPU time.
  void wait_until_it_computes() const {
    const auto ticks = [&] {  // of user time
      std::ifstream file(str("/proc/", server_->pid(), "/stat"));
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      std::istringstream fields(text.substr(text.rfind(')') + 1));
      std::string field;
      for (int i = 3; i <= 14; ++i) fields >> field;
      return std::stol(field);
    };
    const long before = ticks();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (ticks() < before + 10 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_GE(ticks(), before + 10);
  }
  json complete(const json& body) const { return json::parse(http_post(at_, "/v1/completions", body.dump()).body); }
};

TEST_F(ServeTest, AnswersAsOpenAiDoes) {
  serve();
  EXPECT_EQ(json::parse(http_get(at_, "/v1/models").body)["data"][0]["id"], "run");
  EXPECT_EQ(json::parse(http_get(at_, "/v1/models/run").body)["object"], "model");
  const json once = complete({{"prompt", "aaaa"}, {"max_tokens", 8}, {"temperature", 0}});
  EXPECT_EQ(once["choices"][0]["text"], "aaaaaaaa") << once;
  EXPECT_EQ(once["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(once["usage"], json({{"prompt_tokens", 4}, {"completion_tokens", 8}, {"total_tokens", 12}}));
  const json stopped = complete({{"prompt", "aaaa"}, {"max_tokens", 8}, {"temperature", 0}, {"stop", "aa"}});
  EXPECT_EQ(stopped["choices"][0]["text"], "");
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped["usage"]["completion_tokens"], 2);
  const json seeded = {{"prompt", "b"}, {"max_tokens", 20}, {"temperature", 5}, {"seed", 3}};
  EXPECT_EQ(complete(seeded)["choices"], complete(seeded)["choices"]);
  server_->signal(SIGINT);
  EXPECT_EQ(server_->wait().code, 0);
}

TEST_F(ServeTest, TextIsStreamed) {
  serve();
  const json body = {{"prompt", "aaaa"}, {"max_tokens", 8}, {"temperature", 0}, {"stream", true}};
  const test::HttpAnswer a = http_post(at_, "/v1/completions", body.dump());
  EXPECT_EQ(a.headers.at("Content-Type"), "text/event-stream");
  std::string text;
  for (std::size_t at = 0, end = 0; (end = a.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = a.body.substr(at + 6, end - at - 6);
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "aaaaaaaa") << a.body;
  EXPECT_TRUE(a.body.ends_with("data: [DONE]\n\n"));
}

// A client that disconnects in the middle of a text frees the model for the next request.
TEST_F(ServeTest, AClientThatLeavesEndsItsText) {
  serve({"--max-tokens", "100000000"});
  const std::string body = R"({"prompt":"a","max_tokens":100000000,"stream":true,"temperature":0})";
  {
    const auto deadline = AwakeClock::now() + std::chrono::seconds(60);
    const Fd fd = connect_to(at_, deadline);
    send_all(fd,
             str("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(), "\r\n\r\n", body),
             deadline);
    recv_exactly(fd, 500, deadline);
  }
  EXPECT_EQ(complete({{"prompt", "a"}, {"max_tokens", 1}, {"temperature", 0}})["usage"]["completion_tokens"], 1);
}

// Nothing was sent to the client yet, so that no failed write reveals that it has disconnected.
TEST_F(ServeTest, AClientThatLeavesEndsItsWholeReply) {
  serve({"--max-tokens", "100000000"});
  const std::string body = R"({"prompt":"a","max_tokens":100000000,"temperature":0})";
  {
    const auto deadline = AwakeClock::now() + std::chrono::seconds(60);
    const Fd fd = connect_to(at_, deadline);
    send_all(fd,
             str("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(), "\r\n\r\n", body),
             deadline);
    wait_until_it_computes();
  }
  const json next = complete({{"prompt", "a"}, {"max_tokens", 1}, {"temperature", 0}});
  EXPECT_EQ(next.value("usage", json()).value("completion_tokens", 0), 1) << next;
}

// A stream that has begun cannot report the error to the client.
TEST_F(ServeTest, AnErrorInTheMiddleOfATextIsLogged) {
  Session session = open_session(path("run"), {.threads = 1, .device = DeviceChoice::cpu});
  const Parameters& all = session.model->parameters();
  std::fill_n(all.values.data<float>(), all.size(), NAN);
  TextModel model(std::move(session), 1, "");
  CompletionRequest request;
  request.prompt = "a";
  testing::internal::CaptureStderr();
  const auto text = model.start_generation(request, std::chrono::seconds(1));
  EXPECT_THROW(text->wait_for_piece(std::chrono::seconds(20)), Error);
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_NE(logged.find("ended with an error"), std::string::npos) << logged;
}

// Models with pools refuse a cache in FP8: at the start, and where a text's cache is made.
TEST_F(ServeTest, TheKvCacheHasTheGivenType) {
  std::vector<std::string> words = train();
  words.insert(words.end(), {"run.directory=" + path("pools"), "train.steps=1", "model.attention.kind=window",
                             "model.attention.window=4", "model.attention.pools=[4]"});
  ok(words);
  const test::Finished refused =
      test::run_process({test::ring_binary(), "serve", path("pools"), "--listen", "0", "--kv-cache", "fp8"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(contains(refused.output, "Use --kv-cache auto")) << refused.output;
  Session session = open_session(path("pools"), {.threads = 1, .device = DeviceChoice::cpu});
  session.kv_cache = KvCacheType::fp8;
  TextModel model(std::move(session), 1, "");
  CompletionRequest request;
  request.prompt = "a";
  const auto text = model.start_generation(request, std::chrono::seconds(1));
  const std::string error = error_of([&] { text->wait_for_piece(std::chrono::seconds(20)); });
  EXPECT_TRUE(contains(error, "a KV cache in FP8 is not possible")) << error;
}

// The server ends on SIGTERM while it writes a text.
TEST_F(ServeTest, SigtermEndsTheServerInTheMiddleOfAText) {
  serve({"--max-tokens", "100000000"});
  const std::string body = R"({"prompt":"a","max_tokens":100000000,"temperature":0})";
  std::thread asking([&] { http_post(at_, "/v1/completions", body); });
  wait_until_it_computes();
  server_->signal(SIGTERM);
  EXPECT_EQ(server_->wait().code, 0);
  asking.join();
}

// One text is written at a time, and at most eight requests wait.
TEST_F(ServeTest, TheQueueIsBounded) {
  serve({"--max-tokens", "100000000"});
  const std::string body = R"({"prompt":"a","max_tokens":100000000,"stream":true,"temperature":0})";
  const auto deadline = AwakeClock::now() + std::chrono::seconds(60);
  const std::string request =
      str("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  std::vector<Fd> clients;
  for (int i = 0; i < 9; ++i) {
    clients.push_back(connect_to(at_, deadline));
    send_all(clients.back(), request, deadline);
    if (i == 0) recv_exactly(clients[0], 500, deadline);
  }
  // A prompt that is too long, which the server notices only at the request's turn.
  const std::string beyond = json({{"prompt", std::string(64, 'a')}}).dump();
  const auto others_wait = [&] { return http_post(at_, "/v1/completions", beyond); };
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until all of them wait
  const test::HttpAnswer refused = others_wait();
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_TRUE(refused.headers.contains("Retry-After"));
  EXPECT_NE(refused.body.find("too many requests wait"), std::string::npos) << refused.body;
  EXPECT_EQ(http_get(at_, "/healthz").status, 200);
  server_->signal(SIGTERM);
  EXPECT_EQ(server_->wait().code, 0);
}

TEST_F(ServeTest, ErrorsAreJson) {
  serve();
  const auto refused = [&](const std::string& path, const std::string& body, int status, const char* word) {
    const test::HttpAnswer a = http_post(at_, path, body);
    EXPECT_EQ(a.status, status) << a.body;
    EXPECT_EQ(a.headers.at("Content-Type"), "application/json");
    EXPECT_NE(json::parse(a.body)["error"]["message"].get<std::string>().find(word), std::string::npos) << a.body;
  };
  refused("/v1/completions", "{}", 400, "prompt");
  refused("/v1/completions", json({{"prompt", std::string(64, 'a')}}).dump(), 400, "context is 64");
  const test::HttpAnswer large = test::say(
      at_, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 4194305\r\n\r\n");
  EXPECT_EQ(large.status, 413);
  EXPECT_NE(json::parse(large.body)["error"]["message"].get<std::string>().find("4194304 bytes"), std::string::npos);
  refused("/v1/chat/completions", json({{"messages", {{{"role", "user"}, {"content", "a"}}}}}).dump(), 501,
          "choose one with --chat-template");
  refused("/v1/embeddings", "{}", 404, "/v1/embeddings is not served");
  refused("/v1/models", "{}", 405, "GET");
  EXPECT_EQ(json::parse(http_get(at_, "/v1/nothing").body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(http_get(at_, "/v1/completions").status, 405);
  EXPECT_EQ(complete({{"prompt", "a"}, {"max_tokens", 1}, {"temperature", 0}})["usage"]["completion_tokens"], 1);
}

}  // namespace
}  // namespace ring
