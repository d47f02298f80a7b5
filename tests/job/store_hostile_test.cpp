// Strangers and faulty clients of the store get little memory and time, and do not disturb members.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <fstream>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/philox.h"
#include "job/store.h"
#include "job/store_handshake.h"
#include "job/store_sessions.h"

namespace ring {
namespace {

using namespace store_protocol;
using Clock = AwakeClock;
constexpr Timeout kPatience{60'000};

const std::string kOwnNonce(store_handshake::kNonceSize, '7');
const std::string kHello = encode({Op::hello, 0, "", ""});
std::string encode_proof(const std::string& cookie, const std::string& number) {
  return encode({Op::hello, 0, "", store_handshake::client_says(cookie, number, kOwnNonce)});
}

class StoreHostile : public testing::Test {
 protected:
  Fd stranger() const { return connect_to(server_.endpoint(), Clock::now() + kPatience); }
  // Sends a message. Returns the status and the value of the answer.
  static std::pair<Status, std::string> ask(const Fd& fd, const std::string& message) {
    send_all(fd, message, Clock::now() + kPatience);
    std::size_t at = 0;
    const auto length = take<std::uint32_t>(recv_exactly(fd, 4, Clock::now() + kPatience), at);
    const std::string payload = recv_exactly(fd, length, Clock::now() + kPatience);
    at = 4;
    const auto status = take<Status>(payload, at);
    return {status, payload.substr(at)};
  }
  // Opens a connection that has proved to know the cookie.
  Fd member() const {
    Fd fd = stranger();
    const std::string number = ask(fd, kHello).second;
    EXPECT_EQ(ask(fd, encode_proof("s", number)).first, Status::ok);
    return fd;
  }
  void expect_well() const { EXPECT_GE(connect_store(server_.endpoint(), "s", kPatience)->add("well", 1), 1); }
  static void expect_closed(const Fd& fd) { EXPECT_THROW(recv_exactly(fd, 1 << 20, Clock::now() + kPatience), Error); }

  StoreServer server_{{"127.0.0.1", 0}, "s"};
};

// Accepts the next connection.
int accept_soon(const Fd& listening) {
  pollfd fd{listening.get(), POLLIN, 0};
  poll(&fd, 1, static_cast<int>(kPatience.count()));
  return accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

// Returns bytes that depend only on `n`, with various kinds of damage.
std::string damaged_message(std::uint64_t n) {
  const auto bits = [n](std::uint64_t i) { return random_bits({7, 0, 0}, n * 64 + i); };
  std::string text = encode({static_cast<Op>(bits(0) % 7), static_cast<std::int64_t>(bits(1)) << bits(2) % 32,
                             std::string(bits(3) % 40, 'k'), bits(4) % 2 ? "s" : std::string(bits(5) % 600, 'v')});
  for (std::uint64_t i = 0; i < bits(6) % 4; ++i) text[bits(7 + i) % text.size()] = static_cast<char>(bits(12 + i));
  return text.substr(0, bits(20) % 3 ? text.size() : bits(21) % text.size());
}

TEST_F(StoreHostile, ThousandsOfDamagedMessagesDisturbNobody) {
  const auto honest = connect_store(server_.endpoint(), "s", kPatience);
  for (std::uint64_t n = 0; n < 2000; ++n) {
    const Fd fd = n % 2 ? member() : stranger();
    send_all(fd, damaged_message(n), Clock::now() + kPatience);
    if (n % 100 == 0) {
      EXPECT_EQ(honest->add("n", 1), static_cast<std::int64_t>(n / 100 + 1));
    }
  }
  expect_well();
}

TEST_F(StoreHostile, LengthsBeyondTheLimitsEndTheConnection) {
  for (const std::uint32_t length : {0u, 513u, 0x7fffffffu, 0xffffffffu}) {
    std::string text;
    put(text, length);
    const Fd fd = stranger();
    send_all(fd, text + std::string(length ? 8 : 0, 'x'), Clock::now() + kPatience);
    expect_closed(fd);
  }
  for (const std::uint32_t length : {5u, static_cast<std::uint32_t>(kMaxFrame + 1), 0xffffffffu}) {
    std::string text;
    put(text, length);
    const Fd fd = member();
    send_all(fd, text + "xxxxx", Clock::now() + kPatience);
    expect_closed(fd);
  }
  expect_well();
}

// There are more silent strangers than the store has room for.
TEST_F(StoreHostile, ACrowdOfSilentStrangersLetsMembersIn) {
  std::vector<Fd> crowd;
  for (std::size_t i = 0; i < 2 * kMaxStrangers; ++i) crowd.push_back(stranger());
  expect_well();
  const auto honest = connect_store(server_.endpoint(), "s", kPatience);
  for (int i = 0; i < 100; ++i) honest->add("n", 1);
  expect_well();
}

// Sending a byte now and then does not extend the time for the hello.
TEST_F(StoreHostile, ASlowStrangerIsDisconnected) {
  const Fd fd = stranger();
  const std::string hello = kHello + encode_proof("s", kOwnNonce);
  bool out = false;
  for (std::size_t i = 0; !out && i < 100; ++i) {
    const char byte = hello[std::min(i, hello.size() - 2)];
    out = send(fd.get(), &byte, 1, MSG_NOSIGNAL) != 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(out);
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") return status >> word, std::stol(word);
  return 0;
}

// A client that requests and never reads has a bounded number of answers waiting.
TEST_F(StoreHostile, UnreadAnswersAreBounded) {
  const auto honest = connect_store(server_.endpoint(), "s", kPatience);
  honest->set("large", std::string(kMaxStoreValue, 'x'));
  const Fd fd = member();
  const long before = resident_kib();
  const std::string ask = encode({Op::get, 0, "large", ""});
  for (int i = 0; i < 400; ++i)  // 400 MiB of answers
    if (send(fd.get(), ask.data(), ask.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
  for (int i = 0; i < 20; ++i) honest->add("n", 1);
  EXPECT_LT(resident_kib() - before, 150 * 1024);
  expect_well();
}

// Opens a session that has proved to know the cookie.
StoreSessions::Iterator member_of(StoreSessions& sessions, StoreSessions::Clock::time_point now) {
  const auto s = sessions.open(now);
  sessions.receive(*s, kHello, now);
  sessions.receive(*s, encode_proof("s", s->nonce), now);
  EXPECT_TRUE(s->trusted);
  s->out.clear();
  return s;
}

TEST(StoreSessions, RequestsWaitUntilTheirAnswersFit) {
  StoreSessions sessions("s");
  const auto now = StoreSessions::Clock::now();
  const auto s = member_of(sessions, now);
  sessions.receive(*s, encode({Op::set, 0, "large", std::string(kMaxStoreValue, 'x')}), now);
  s->out.clear();
  std::string asks;
  for (int i = 0; i < 400; ++i) asks += encode({Op::get, 0, "large", ""});
  sessions.receive(*s, asks, now);
  const std::size_t answer = reply(Status::ok, std::string(kMaxStoreValue, 'x')).size();
  std::size_t answers = 0;
  for (int turn = 0; turn < 400 && !s->out.empty(); ++turn) {
    EXPECT_LE(s->out.size(), kMaxUnsent + answer);
    answers += s->out.size() / answer;
    s->out.clear();
    sessions.receive(*s, {}, now);
  }
  EXPECT_EQ(answers, 400u);
}

// Strangers from one address leave room for those from other addresses.
TEST(StoreSessions, StrangersOfOneAddressAreBounded) {
  StoreSessions sessions("s");
  const auto begin = StoreSessions::Clock::now();
  std::vector<StoreSessions::Iterator> crowd;
  for (std::size_t i = 0; i < kMaxStrangersPerAddress; ++i) {
    crowd.push_back(sessions.open(begin, "a"));
    EXPECT_FALSE(sessions.crowding_stranger(crowd.back(), begin));
  }
  const auto other = sessions.open(begin, "b");
  EXPECT_FALSE(sessions.crowding_stranger(other, begin));
  const auto early = sessions.open(begin + kMinStrangerTime / 2, "a");
  EXPECT_TRUE(sessions.crowding_stranger(early, begin + kMinStrangerTime / 2) == early)
      << "the others have to get their chance";
  sessions.close(early, begin + kMinStrangerTime / 2);
  const auto late = sessions.open(begin + kMinStrangerTime, "a");
  EXPECT_TRUE(sessions.crowding_stranger(late, begin + kMinStrangerTime) == crowd[0]);
  sessions.receive(*crowd[1], kHello, begin);
  sessions.receive(*crowd[1], encode_proof("s", crowd[1]->nonce), begin);
  EXPECT_FALSE(sessions.crowding_stranger(late, begin + kMinStrangerTime)) << "members are no strangers";
}

TEST(StoreSessions, ExtremeNumbersAreHandled) {
  StoreSessions sessions("s");
  const auto now = StoreSessions::Clock::now();
  const auto s = member_of(sessions, now);
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();
  const auto say = [&](Op op, std::int64_t number, const std::string& key, const std::string& value) {
    s->out.clear();
    sessions.receive(*s, encode({op, number, key, value}), now);
    return s->out;
  };
  EXPECT_EQ(say(Op::add, kMost, "n", ""), reply(Status::ok, std::to_string(kMost)));
  EXPECT_EQ(say(Op::add, 1, "n", ""), reply(Status::refused)) << "no overflow";
  EXPECT_EQ(say(Op::add, kLeast, "m", ""), reply(Status::ok, std::to_string(kLeast)));
  EXPECT_EQ(say(Op::add, -1, "m", ""), reply(Status::refused));
  for (const std::int64_t number : {kLeast, kMost}) {
    say(Op::beat, number, "b", "");
    sessions.answer_heartbeats(now);
    EXPECT_FALSE(s->out.empty());
  }
  EXPECT_EQ(say(Op::get, kLeast, "none", ""), reply(Status::absent));
  EXPECT_EQ(say(Op::get, kMost, "none", ""), "");
  sessions.handle_timeouts(now + std::chrono::hours(25));
  EXPECT_EQ(s->out, reply(Status::absent)) << "nobody waits longer than a day";
}

TEST(StoreSessions, AllValuesTogetherAreBounded) {
  StoreSessions sessions("s");
  const auto now = StoreSessions::Clock::now();
  const auto s = member_of(sessions, now);
  std::size_t kept = 0;
  for (int i = 0; i < 400; ++i) {
    s->out.clear();
    sessions.receive(*s, encode({Op::set, 0, "k" + std::to_string(i), std::string(kMaxStoreValue, 'x')}), now);
    kept += s->out == reply(Status::ok);
  }
  EXPECT_LE(kept * kMaxStoreValue, kMaxStoreBytes);
  EXPECT_GT((kept + 2) * kMaxStoreValue, kMaxStoreBytes);
  s->out.clear();
  sessions.receive(*s, encode({Op::set, 0, "k0", "small"}), now);
  sessions.receive(*s, encode({Op::set, 0, "new", "small"}), now);
  EXPECT_EQ(s->out, reply(Status::ok) + reply(Status::ok)) << "what is replaced makes room";
}

// A client that listened to another connection, or guesses, is refused and learns nothing.
TEST_F(StoreHostile, ProofsOfOtherConnectionsAreRefused) {
  const Fd watched = stranger();
  const std::string number = ask(watched, kHello).second, knocked = encode_proof("s", number);
  ASSERT_EQ(number.size(), store_handshake::kNonceSize);
  EXPECT_EQ(ask(watched, knocked).first, Status::ok);
  const Fd replay = stranger();
  EXPECT_NE(ask(replay, kHello).second, number) << "each connection has a number of its own";
  EXPECT_EQ(ask(replay, knocked), std::pair(Status::refused, std::string()));
  expect_closed(replay);

  const Fd reflected = stranger();  // the server's own proof, which is made for the opposite direction
  const std::string again = ask(reflected, kHello).second;
  const std::string theirs = store_handshake::proof("s", "server", again, kOwnNonce);
  EXPECT_EQ(ask(reflected, encode({Op::hello, 0, "", kOwnNonce + theirs})).first, Status::refused);

  const Fd hasty = stranger();  // a request before the proof
  ask(hasty, kHello);
  send_all(hasty, encode({Op::set, 0, "k", "v"}), Clock::now() + kPatience);
  expect_closed(hasty);
  expect_well();
}

// The bytes of a member are sent again, on another connection to the same store and to another store with the same
// cookie.
TEST(StoreSessions, AReplayedConversationIsRefused) {
  StoreSessions store("s"), another("s");
  const auto now = StoreSessions::Clock::now();
  const auto member = store.open(now);
  std::string said = kHello;
  store.receive(*member, said, now);
  const std::string rest =
      encode_proof("s", member->nonce) + encode({Op::add, 1, "n", ""}) + encode({Op::append, 0, "orders", "stop"});
  store.receive(*member, rest, now);
  said += rest;
  EXPECT_TRUE(member->out.ends_with(reply(Status::ok, "1") + reply(Status::ok, "0"))) << "the member is obeyed";
  for (StoreSessions* to : {&store, &another}) {
    const auto replay = to->open(now);
    to->receive(*replay, said, now);
    EXPECT_FALSE(replay->trusted);
    EXPECT_TRUE(replay->closing);
    EXPECT_TRUE(replay->out.ends_with(reply(Status::refused)));
    const auto witness = member_of(*to, now);
    to->receive(*witness, encode({Op::add, 0, "n", ""}) + encode({Op::add, 0, "orders", ""}), now);
    const std::string count = to == &store ? "1" : "0";
    EXPECT_EQ(witness->out, reply(Status::ok, count) + reply(Status::ok, count)) << "nothing was done again";
  }
}

// A client does not trust a server that does not know the cookie.
TEST(Store, AServerMustKnowTheCookie) {
  const Fd listening = listen_on({"127.0.0.1", 0});
  std::thread impostor([&] {
    const Fd fd(accept_soon(listening));
    for (const std::string& answer : {reply(Status::ok, random_cookie()), reply(Status::ok, hmac("guess", "proof"))}) {
      std::size_t at = 0;
      const auto length = take<std::uint32_t>(recv_exactly(fd, 4, Clock::now() + kPatience), at);
      recv_exactly(fd, length, Clock::now() + kPatience);
      send_all(fd, answer, Clock::now() + kPatience);
    }
  });
  EXPECT_THROW(try_store(local_endpoint(listening), "s", kPatience), StoreRefused);
  impostor.join();
}

TEST(StoreSessions, AListStoresEachValueUnderItsNumber) {
  StoreSessions sessions("s");
  const auto now = StoreSessions::Clock::now();
  const auto a = member_of(sessions, now), b = member_of(sessions, now);
  const auto say = [&](const StoreSessions::Iterator& s, const Request& r) {
    s->out.clear();
    sessions.receive(*s, encode(r), now);
    return s->out;
  };
  say(b, {Op::get, 5000, "l/1", ""});
  EXPECT_EQ(say(a, {Op::append, 0, "l", "first"}), reply(Status::ok, "0"));
  EXPECT_EQ(b->out, "");
  EXPECT_EQ(say(a, {Op::append, 0, "l", "second"}), reply(Status::ok, "1"));
  EXPECT_EQ(b->out, reply(Status::ok, "second")) << "who waited is answered";
  EXPECT_EQ(say(a, {Op::get, 0, "l/0", ""}), reply(Status::ok, "first"));
  say(a, {Op::set, 0, "l", "-5"});
  EXPECT_EQ(say(a, {Op::append, 0, "l", "x"}), reply(Status::refused)) << "no list any more";
  EXPECT_EQ(say(a, {Op::append, 0, std::string(kMaxKey, 'k'), "x"}), reply(Status::refused)) << "no room in the name";
}

}  // namespace
}  // namespace ring
