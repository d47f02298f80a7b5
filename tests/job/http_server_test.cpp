// The HTTP server: access, and clients with bad intentions.
#include "job/http_server.h"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include "job/http_access.h"
#include "tests/http_client.h"

namespace ring {
namespace {

using std::chrono::seconds;
using test::http_get;
using test::http_post;
using test::HttpAnswer;

const Endpoint kAnywhere{"127.0.0.1", 0};
const std::string kToken(32, 't');

HttpReply echo(const HttpRequest& r) {
  if (r.path == "/throw") fail("no <such> thing");
  std::string text = r.method + " " + r.path + " " + r.body;
  for (const auto& [key, value] : r.query) text += " " + key + "=" + value;
  return {.body = text};
}

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!http_available()) GTEST_SKIP() << "this build has no HTTP";
  }
};

TEST(HttpAccess, WithoutATokenOnlyThisMachineHasAccess) {
  const HttpAccess own({"127.0.0.1", 80}, "");
  EXPECT_EQ(own.refusal_status({"", "127.0.0.1:80", ""}), 0);
  EXPECT_EQ(own.refusal_status({"", "localhost:80", "http://localhost:80"}), 0);
  EXPECT_EQ(own.refusal_status({"", "[::1]:80", ""}), 0);
  EXPECT_EQ(own.refusal_status({"", "evil.example:80", ""}),
            403);  // a foreign name that resolves to this machine's address
  EXPECT_EQ(own.refusal_status({"", "127.0.0.1.evil.example", ""}), 403);
  EXPECT_EQ(own.refusal_status({"", "127.0.0.1:80", "http://evil.example"}), 403);
  EXPECT_EQ(own.refusal_status({"", "127.0.0.1:80", "http://[::1].evil.example"}), 403);
  EXPECT_EQ(own.refusal_status({"", "", ""}), 0);  // HTTP/1.0
  EXPECT_EQ(own.refusal_status({"", "127.0.0.1:80", "null"}), 403);
  EXPECT_THROW(HttpAccess({"0.0.0.0", 80}, ""), Error);
  EXPECT_THROW(HttpAccess({"::", 80}, ""), Error);
}

TEST(HttpAccess, ATokenGivesAccess) {
  const HttpAccess open({"0.0.0.0", 80}, "secret");
  EXPECT_EQ(open.refusal_status({"Bearer secret", "node7:80", "https://proxy.example"}), 0);
  EXPECT_EQ(open.refusal_status({"Basic cmluZ21hc3RlcjpzZWNyZXQ=", "node7:80", ""}), 0);  // ringmaster:secret
  for (const char* wrong :
       {"", "Bearer ", "Bearer secre", "Bearer secret ", "bearer secret", "secret", "Basic c2VjcmV0"})
    EXPECT_EQ(open.refusal_status({wrong, "127.0.0.1:80", ""}), 401) << wrong;
}

TEST(HttpAccess, AHostIsANameOrANumberWithAPort) {
  const HttpAccess own({"127.0.0.1", 80}, ""), open({"0.0.0.0", 80}, "secret");
  for (const std::string& host :
       {std::string("[::1].evil.example"), std::string("[::1]evil.example:80"), std::string("[::1"),
        std::string("[localhost]"), std::string("localhost:80:80"), std::string("localhost:x"), std::string("::1"),
        std::string("localhost, evil.example"), std::string("user@localhost"), std::string("localhost/"),
        std::string("local host"), std::string(":80"), std::string(400, 'a')}) {
    EXPECT_EQ(own.refusal_status({"", host, ""}), 400) << host;
    EXPECT_EQ(open.refusal_status({"Bearer secret", host, ""}), 400) << host;
  }
  for (const char* host : {"localhost", "localhost:", "[::1]", "[::1]:65535", "127.0.0.1"})
    EXPECT_EQ(own.refusal_status({"", host, ""}), 0) << host;
  EXPECT_EQ(open.refusal_status({"Bearer secret", "a-b_c.example.:80", ""}), 0);
}

TEST(HttpEndpoint, IsAPortOrAnAddress) {
  EXPECT_EQ(parse_http_endpoint("--x", "8080"), (Endpoint{"127.0.0.1", 8080}));
  EXPECT_EQ(parse_http_endpoint("--x", "0"), kAnywhere);
  EXPECT_EQ(parse_http_endpoint("--x", "[::]:90"), (Endpoint{"::", 90}));
  for (const char* wrong : {"", "65536", "99999999999", "-1", "host", "host:", ":80", "a:b", "80x"})
    EXPECT_THROW(parse_http_endpoint("--x", wrong), Error) << wrong;
}

TEST_F(HttpServerTest, AnswersAndRefuses) {
  const HttpServer server({.at = kAnywhere, .max_body = 100}, echo);
  const Endpoint at = server.endpoint();
  EXPECT_GT(at.port, 0);
  const HttpAnswer get = http_get(at, "/a?x=1&y=%20z");
  EXPECT_EQ(get.status, 200);
  EXPECT_EQ(get.body, "GET /a  x=1 y= z");
  EXPECT_EQ(get.headers.at("Cache-Control"), "no-store");
  EXPECT_EQ(http_post(at, "/b", std::string(100, 'c')).body, "POST /b " + std::string(100, 'c'));
  EXPECT_EQ(http_post(at, "/b", std::string(101, 'c')).status, 413);
  const HttpAnswer thrown = http_get(at, "/throw");
  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body, "no <such> thing\n");
  EXPECT_EQ(test::say(at, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").status, 403);
}

// Two readers of such a request may disagree about its end or about the host that it is for.
TEST_F(HttpServerTest, AmbiguousRequestsAreRefused) {
  const HttpServer server({.at = kAnywhere, .max_body = 100}, echo);
  const std::string host = "Host: localhost\r\n", five = "Content-Length: 5\r\n",
                    chunked = "Transfer-Encoding: chunked\r\n",
                    hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const std::string& headers :
       {host + five + chunked, host + chunked + five, host + five + "Content-Length: 6\r\n", host + five + five,
        host + "content-length: 5\r\nCONTENT-LENGTH: 5\r\n", host + "Content-Length: 5, 5\r\n",
        host + chunked + chunked, host + "Transfer-Encoding: gzip, chunked\r\n",
        host + "Transfer-Encoding: identity\r\n", host + "Transfer-Encoding : chunked\r\n" + five, host + host + five,
        host + "Host: 127.0.0.1\r\n" + five, five, "Host: [::1].evil.example\r\n" + five}) {
    const auto deadline = AwakeClock::now() + seconds(60);
    const Fd fd = connect_to(server.endpoint(), deadline);
    send_all(fd, "POST / HTTP/1.1\r\n" + headers + "\r\n" + hidden, deadline);
    const std::string said = test::received(fd);  // the server must close: the rest may not be a request
    EXPECT_EQ(test::answer_of(said).status, 400) << headers << said;
    EXPECT_EQ(said.find("hidden"), std::string::npos) << headers << said;
  }
  EXPECT_EQ(test::say(server.endpoint(), "GET / HTTP/1.0\r\n\r\n").status, 200);
}

TEST_F(HttpServerTest, AWrongTokenIsRefused) {
  const HttpServer server({.at = kAnywhere, .token = kToken}, echo);
  EXPECT_EQ(http_get(server.endpoint(), "/").status, 401);
  EXPECT_EQ(http_get(server.endpoint(), "/", "Authorization: Bearer no\r\n").status, 401);
  EXPECT_EQ(http_get(server.endpoint(), "/", "Authorization: Bearer " + kToken + "\r\n").status, 200);
}

TEST_F(HttpServerTest, ABodyWithoutALengthIsBounded) {
  const HttpServer server({.at = kAnywhere, .max_body = 1000}, echo);
  const std::string chunk = "400\r\n" + std::string(1024, 'x') + "\r\n";
  std::string body;
  for (int i = 0; i < 64; ++i) body += chunk;
  const std::string head =
      "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(test::say(server.endpoint(), head + body + "0\r\n\r\n").status, 413);
  EXPECT_EQ(test::say(server.endpoint(), head + "3e8\r\n" + std::string(1000, 'x') + "\r\n0\r\n\r\n").status, 200);
}

TEST_F(HttpServerTest, MalformedRequestsEndTheConnection) {
  const HttpServer server({.at = kAnywhere, .silence = seconds(1)}, echo);
  const Endpoint at = server.endpoint();
  for (const std::string& bytes :
       {std::string("\0\xff\x16\x03\x01", 5), std::string("GET"), std::string("GET / HTTP/9.9\r\n\r\n"),
        "GET /" + std::string(200'000, 'a'), "GET / HTTP/1.1\r\n" + std::string(200'000, 'b'),
        std::string("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    try {
      EXPECT_NE(test::say(at, bytes).status, 200) << bytes.substr(0, 60);
    } catch (const Error&) {  // the server closed before all was sent
    }
  }
  EXPECT_EQ(http_get(at, "/").status, 200);
}

TEST_F(HttpServerTest, StreamsAndEndsThemWithTheClient) {
  std::atomic<int> alive{0}, given{0};
  struct Guard {
    std::atomic<int>& n;
    explicit Guard(std::atomic<int>& count) : n(count) { ++n; }
    ~Guard() { --n; }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
  };
  const HttpServer server({.at = kAnywhere, .may_block = true}, [&](const HttpRequest& r) {
    auto guard = std::make_shared<Guard>(alive);
    const int most = r.path == "/endless" ? 1'000'000'000 : 3;
    return HttpReply{.stream = [&given, guard, most, n = 0]() mutable {
      given = ++n;
      return n > most ? "" : n == 2 ? std::string(50'000, 'x') : "piece " + std::to_string(n) + "\n";
    }};
  });
  EXPECT_EQ(http_get(server.endpoint(), "/").body, "piece 1\n" + std::string(50'000, 'x') + "piece 3\n");
  {
    const auto deadline = AwakeClock::now() + seconds(10);
    const Fd fd = connect_to(server.endpoint(), deadline);
    send_all(fd, "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n", deadline);
    recv_exactly(fd, 1000, deadline);
    EXPECT_EQ(alive, 1);
  }
  for (int i = 0; i < 1000 && alive > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(alive, 0);
}

// Silence is the client's, not that of a model that is computing. A stream may be silent for as long.
TEST_F(HttpServerTest, SlowAnswersAreNoSilence) {
  const HttpServer server({.at = kAnywhere, .may_block = true, .silence = seconds(1)}, [](const HttpRequest& r) {
    const auto think = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    if (r.path == "/whole") return think(2500), HttpReply{.body = "whole"};
    return HttpReply{.stream = [think, left = 6]() mutable {
      think(500);
      return left-- > 0 ? str(left) : "";
    }};
  });
  EXPECT_EQ(http_get(server.endpoint(), "/whole").body, "whole");
  EXPECT_EQ(http_get(server.endpoint(), "/stream").body, "543210");
}

TEST_F(HttpServerTest, AHandlerSeesThatItsClientHasLeft) {
  std::atomic<int> there{0}, left{0};
  const HttpServer server({.at = kAnywhere, .may_block = true}, [&](const HttpRequest& r) {
    const auto end = AwakeClock::now() + seconds(r.path == "/brief" ? 0 : 20);
    while (!r.gone() && AwakeClock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++(r.gone() ? left : there);
    return HttpReply{.body = "ok"};
  });
  const auto deadline = AwakeClock::now() + seconds(10);
  const std::string brief = "GET /brief HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const Fd two = connect_to(server.endpoint(), deadline);
  send_all(two, brief + brief, deadline);  // the second request is queued behind the first
  recv_exactly(two, 100, deadline);
  EXPECT_EQ(http_get(server.endpoint(), "/brief").body, "ok");
  EXPECT_EQ(left, 0);
  {
    const Fd fd = connect_to(server.endpoint(), deadline);
    send_all(fd, "GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n", deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_EQ(left, 0);
  }
  for (int i = 0; i < 500 && left == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(left, 1);
}

// Sends the bytes of `text` one at a time, again and again, until the server closes. Returns false if it does not
// within a minute.
bool drips_until_closed(const Endpoint& at, const std::string& begin, const std::string& text) {
  const auto deadline = AwakeClock::now() + seconds(60);
  const Fd fd = connect_to(at, deadline);
  send_all(fd, begin, deadline);
  for (std::size_t i = 0; AwakeClock::now() < deadline; ++i) {
    pollfd p{fd.get(), POLLIN, 0};
    if (poll(&p, 1, 50) > 0) return true;  // the server has closed
    if (send(fd.get(), &text[i % text.size()], 1, MSG_NOSIGNAL) != 1) return true;
  }
  return false;
}

// Such a client is never silent: only the deadline for the whole request ends it.
TEST_F(HttpServerTest, ARequestThatNeverEndsIsClosed) {
  const auto options = [](bool may_block) {
    return HttpOptions{
        .at = kAnywhere, .may_block = may_block, .silence = seconds(300), .request = seconds(1), .max_body = 1000};
  };
  const HttpServer one_thread(options(false), echo), thread_each(options(true), echo);
  EXPECT_TRUE(drips_until_closed(one_thread.endpoint(), "GET / HTTP/1.1\r\n", "X: y\r\n"));
  EXPECT_TRUE(drips_until_closed(thread_each.endpoint(),
                                 "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", "x"));
}

// There are more such requests than connections, counting those that libmicrohttpd accepts while others close. No
// deadline ends them during the test.
TEST_F(HttpServerTest, RequestsThatNeverEndMakeWay) {
  const std::string head = "GET / HTTP/1.1\r\nX: ",
                    body = str("POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ", kToken,
                               "\r\nContent-Length: 1000\r\n\r\nx");
  for (const bool may_block : {false, true}) {
    const HttpServer server({.at = kAnywhere,
                             .token = kToken,
                             .may_block = may_block,
                             .connections = 8,
                             .silence = seconds(300),
                             .request = seconds(300),
                             .max_body = 1000},
                            echo);
    const auto deadline = AwakeClock::now() + seconds(60);
    std::vector<Fd> crowd;
    for (int i = 0; i < 80; ++i) {
      crowd.push_back(connect_to(server.endpoint(), deadline));
      send_all(crowd.back(), i % 2 ? head : body, deadline);
      if (i % 4 == 0) {
        EXPECT_EQ(http_get(server.endpoint(), "/", "Authorization: Bearer " + kToken + "\r\n").status, 200);
      }
    }
  }
}

// A client that never stops sending does not keep the server from ending.
TEST_F(HttpServerTest, EndsWhileClientsTalk) {
  std::vector<Fd> slow;
  auto server = std::make_unique<HttpServer>(
      HttpOptions{.at = kAnywhere, .silence = seconds(300), .request = seconds(300)}, echo);
  const auto deadline = AwakeClock::now() + seconds(60);
  for (int i = 0; i < 20; ++i) {
    slow.push_back(connect_to(server->endpoint(), deadline));
    send_all(slow.back(), "GET / HTTP/1.1\r\nX: ", deadline);
  }
  std::atomic<bool> stop{false};
  std::thread drip([&] {
    while (!stop) {
      for (const Fd& fd : slow) try {
          send_all(fd, "x", AwakeClock::now() + seconds(1));
        } catch (const Error&) {
        }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto begin = AwakeClock::now();
  server.reset();
  EXPECT_LT(AwakeClock::now() - begin, seconds(60)) << "it waited for them";
  stop = true;
  drip.join();
}

TEST_F(HttpServerTest, APortThatIsTakenIsAnError) {
  const HttpServer server({.at = kAnywhere}, echo);
  EXPECT_THROW(HttpServer({.at = server.endpoint()}, echo), ListenError);
}

}  // namespace
}  // namespace ring
