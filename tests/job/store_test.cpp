#include "job/store.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/check.h"
#include "tests/error_of.h"

namespace ring {
namespace {

using Clock = AwakeClock;
constexpr Timeout kSoon{2000};

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

TEST(Store, SetGetAndAddWork) {
  const StoreServer server({"127.0.0.1", 0}, "secret");
  const auto a = connect_store(server.endpoint(), "secret", kSoon),
             b = connect_store(server.endpoint(), "secret", kSoon);
  EXPECT_FALSE(a->try_get("k").has_value());
  const std::string bytes("a\0b\xff\n", 5);
  a->set("k", bytes);
  EXPECT_EQ(b->get("k", kSoon), bytes);
  a->set("k", "");
  EXPECT_EQ(b->try_get("k"), "");
  EXPECT_EQ(a->add("n", 5), 5);
  EXPECT_EQ(b->add("n", -7), -2);
  EXPECT_EQ(a->local_address(), "127.0.0.1");
  const std::string large(kMaxStoreValue, 'x');
  a->set("large", large);
  EXPECT_EQ(b->get("large", kSoon), large);
  EXPECT_THROW(a->set("large", large + "x"), Error);
  EXPECT_THROW(a->set("", "x"), Error);
}

TEST(Store, GetWaitsForTheValue) {
  const StoreServer server({"127.0.0.1", 0}, "s");
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    connect_store(server.endpoint(), "s", kSoon)->set("late", "here");
  });
  EXPECT_EQ(connect_store(server.endpoint(), "s", kSoon)->get("late", kSoon), "here");
  setter.join();
}

TEST(Store, GetTimesOutNamingTheKey) {
  const StoreServer server({"127.0.0.1", 0}, "s");
  const auto store = connect_store(server.endpoint(), "s", kSoon);
  const auto begin = Clock::now();
  const std::string error = error_of([&] { store->get("never", Timeout(100)); });
  EXPECT_TRUE(contains(error, "'never' within 0.1 s")) << error;
  EXPECT_LT(seconds_since(begin), 1.5);
  store->set("k", "still usable");
  EXPECT_EQ(store->get("k", kSoon), "still usable");
}

TEST(Store, AddsFromManyConnectionsAllCount) {
  const StoreServer server({"127.0.0.1", 0}, "s");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      const auto store = connect_store(server.endpoint(), "s", kSoon);
      for (int i = 0; i < 50; ++i) store->add("n", 1);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(connect_store(server.endpoint(), "s", kSoon)->add("n", 0), 400);
}

TEST(Store, TheCookieOfAnotherJobIsRefusedAtOnce) {
  const StoreServer server({"127.0.0.1", 0}, "job A");
  const auto begin = Clock::now();
  const std::string error = error_of([&] { connect_store(server.endpoint(), "job B", Timeout(30'000)); });
  EXPECT_NE(error.find("belongs to a different job"), std::string::npos) << error;
  EXPECT_LT(seconds_since(begin), 2);
}

TEST(Store, AMissingServerIsNamedByItsAddress) {
  Endpoint nobody;
  {
    const StoreServer server({"127.0.0.1", 0}, "s");
    nobody = server.endpoint();
  }
  const std::string error = error_of([&] { connect_store(nobody, "s", Timeout(200)); });
  EXPECT_NE(error.find(to_string(nobody)), std::string::npos) << error;
  EXPECT_NE(error.find("refused"), std::string::npos) << error;
}

TEST(Store, StrangersAreDisconnectedAndHarmNobody) {
  const StoreServer server({"127.0.0.1", 0}, "s");
  const auto deadline = Clock::now() + kSoon;
  for (const std::string& junk :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4, '\xff'), std::string("\x05\0\0\0hello", 9)}) {
    const Fd fd = connect_to(server.endpoint(), deadline);
    send_all(fd, junk, deadline);
    EXPECT_THROW(recv_exactly(fd, 64, deadline), Error);  // closed, not left hanging
  }
  EXPECT_LT(Clock::now(), deadline);
  EXPECT_EQ(connect_store(server.endpoint(), "s", kSoon)->add("n", 1), 1);
}

TEST(Store, AServerThatDiesIsAnError) {
  auto server = std::make_unique<StoreServer>(Endpoint{"127.0.0.1", 0}, "s");
  const auto store = connect_store(server->endpoint(), "s", kSoon);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.reset();
  });
  const auto begin = Clock::now();
  EXPECT_THROW(store->get("k", Timeout(20'000)), Error);
  EXPECT_LT(seconds_since(begin), 2);
  killer.join();
  EXPECT_THROW(store->set("k", "v"), Error);
}

TEST(Store, APortInUseIsAnError) {
  const StoreServer server({"127.0.0.1", 0}, "s");
  const std::string error = error_of([&] { StoreServer second(server.endpoint(), "s"); });
  EXPECT_NE(error.find("cannot listen on " + to_string(server.endpoint())), std::string::npos) << error;
}

TEST(Endpoint, IsParsedForBothFamilies) {
  EXPECT_EQ(parse_endpoint("127.0.0.1:80"), (Endpoint{"127.0.0.1", 80}));
  EXPECT_EQ(parse_endpoint("[::1]:65535"), (Endpoint{"::1", 65535}));
  EXPECT_EQ(to_string(parse_endpoint("[fe80::1]:7")), "[fe80::1]:7");
  for (const char* bad : {"", ":1", "host", "host:", "host:0", "host:65536", "host:12x", "::1:80", "[]:80"})
    EXPECT_THROW(parse_endpoint(bad), Error) << bad;
}

TEST(Cookie, IsLongAndDiffers) {
  const std::string a = random_cookie();
  EXPECT_EQ(a.size(), 32u);
  EXPECT_NE(a, random_cookie());
}

}  // namespace
}  // namespace ring
