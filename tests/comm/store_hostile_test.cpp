// Strangers and damaged clients at the store's door: they get little room and time, and nobody else notices.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <fstream>
#include <thread>
#include <vector>

#include "comm/store.h"
#include "comm/store_sessions.h"
#include "core/check.h"
#include "core/philox.h"

namespace ring {
namespace {

using namespace store_protocol;
using Clock = std::chrono::steady_clock;
constexpr Timeout kSoon{5000};

class StoreHostile : public testing::Test {
 protected:
  Fd stranger() const { return connect_to(server_.endpoint(), Clock::now() + kSoon); }
  // One that has shown the cookie.
  Fd member() const {
    Fd fd = stranger();
    send_all(fd, encode({Op::hello, 0, "", "s"}), Clock::now() + kSoon);
    recv_exactly(fd, 9, Clock::now() + kSoon);
    return fd;
  }
  void expect_well() const {
    const auto begin = Clock::now();
    EXPECT_GE(connect_store(server_.endpoint(), "s", kSoon)->add("well", 1), 1);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  }
  static void expect_closed(const Fd& fd) { EXPECT_THROW(recv_exactly(fd, 1 << 20, Clock::now() + kSoon), Error); }

  StoreServer server_{{"127.0.0.1", 0}, "s"};
};

// Bytes that are a function of a number: what is said differs by kind of damage.
std::string damaged_message(std::uint64_t n) {
  const auto bits = [n](std::uint64_t i) { return random_bits({7, 0, 0}, n * 64 + i); };
  std::string text = encode({static_cast<Op>(bits(0) % 7), static_cast<std::int64_t>(bits(1)) << bits(2) % 32,
                             std::string(bits(3) % 40, 'k'), bits(4) % 2 ? "s" : std::string(bits(5) % 600, 'v')});
  for (std::uint64_t i = 0; i < bits(6) % 4; ++i) text[bits(7 + i) % text.size()] = static_cast<char>(bits(12 + i));
  return text.substr(0, bits(20) % 3 ? text.size() : bits(21) % text.size());
}

TEST_F(StoreHostile, ThousandsOfDamagedMessages) {
  const auto honest = connect_store(server_.endpoint(), "s", kSoon);
  for (std::uint64_t n = 0; n < 2000; ++n) {
    const Fd fd = n % 2 ? member() : stranger();
    send_all(fd, damaged_message(n), Clock::now() + kSoon);
    if (n % 100 == 0) {
      EXPECT_EQ(honest->add("n", 1), static_cast<std::int64_t>(n / 100 + 1));
    }
  }
  expect_well();
}

TEST_F(StoreHostile, LengthsBeyondTheLimits) {
  for (const std::uint32_t length : {0u, 513u, 0x7fffffffu, 0xffffffffu}) {
    std::string text;
    put(text, length);
    const Fd fd = stranger();
    send_all(fd, text + std::string(length ? 8 : 0, 'x'), Clock::now() + kSoon);
    expect_closed(fd);
  }
  for (const std::uint32_t length : {5u, static_cast<std::uint32_t>(kMaxFrame + 1), 0xffffffffu}) {
    std::string text;
    put(text, length);
    const Fd fd = member();
    send_all(fd, text + "xxxxx", Clock::now() + kSoon);
    expect_closed(fd);
  }
  expect_well();
}

// More than there is room for, and none of them says a word.
TEST_F(StoreHostile, ACrowdOfSilentStrangersLetsMembersIn) {
  std::vector<Fd> crowd;
  for (std::size_t i = 0; i < 2 * kMaxStrangers; ++i) crowd.push_back(stranger());
  expect_well();
  const auto honest = connect_store(server_.endpoint(), "s", kSoon);
  for (int i = 0; i < 100; ++i) honest->add("n", 1);
  expect_well();
}

// A byte now and then keeps nobody in beyond the time for the hello.
TEST_F(StoreHostile, ASlowStrangerIsShownOut) {
  const Fd fd = stranger();
  const std::string hello = encode({Op::hello, 0, "", "s"});
  const auto begin = Clock::now();
  bool out = false;
  for (std::size_t i = 0; !out && i < 100; ++i) {
    const char byte = hello[std::min(i, hello.size() - 2)];
    out = send(fd.get(), &byte, 1, MSG_NOSIGNAL) != 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(out);
  EXPECT_LT(Clock::now() - begin, kHelloTime + std::chrono::seconds(3));
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") return status >> word, std::stol(word);
  return 0;
}

// One that asks and never reads: the answers that wait for it are bounded.
TEST_F(StoreHostile, AnswersThatNobodyReadsAreBounded) {
  const auto honest = connect_store(server_.endpoint(), "s", kSoon);
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

TEST(StoreSessions, RequestsWaitUntilTheirAnswersHaveRoom) {
  StoreSessions sessions("s");
  const auto now = StoreSessions::Clock::now();
  const auto s = sessions.open(now);
  sessions.receive(
      *s, encode({Op::hello, 0, "", "s"}) + encode({Op::set, 0, "large", std::string(kMaxStoreValue, 'x')}), now);
  s->out.clear();
  std::string asks;
  for (int i = 0; i < 400; ++i) asks += encode({Op::get, 0, "large", ""});
  sessions.receive(*s, asks, now);
  const std::size_t answer = reply(Status::ok, std::string(kMaxStoreValue, 'x')).size();
  std::size_t answers = 0;
  for (int turn = 0; turn < 400 && !s->out.empty(); ++turn) {
    EXPECT_LE(s->out.size(), kMaxUnread + answer);
    answers += s->out.size() / answer;
    s->out.clear();
    sessions.receive(*s, {}, now);
  }
  EXPECT_EQ(answers, 400u);
}

TEST(StoreSessions, NumbersAtTheirExtremes) {
  StoreSessions sessions("s");
  const auto now = StoreSessions::Clock::now();
  const auto s = sessions.open(now);
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();
  const auto say = [&](Op op, std::int64_t number, const std::string& key, const std::string& value) {
    s->out.clear();
    sessions.receive(*s, encode({op, number, key, value}), now);
    return s->out;
  };
  EXPECT_EQ(say(Op::hello, 0, "", "s"), reply(Status::ok));
  EXPECT_EQ(say(Op::add, kMost, "n", ""), reply(Status::ok, std::to_string(kMost)));
  EXPECT_EQ(say(Op::add, 1, "n", ""), reply(Status::refused)) << "no overflow";
  EXPECT_EQ(say(Op::add, kLeast, "m", ""), reply(Status::ok, std::to_string(kLeast)));
  EXPECT_EQ(say(Op::add, -1, "m", ""), reply(Status::refused));
  for (const std::int64_t number : {kLeast, kMost}) {
    say(Op::beat, number, "b", "");
    sessions.answer_beats(now);
    EXPECT_FALSE(s->out.empty());
  }
  EXPECT_EQ(say(Op::get, kLeast, "none", ""), reply(Status::absent));
  EXPECT_EQ(say(Op::get, kMost, "none", ""), "");
  sessions.expire(now + std::chrono::hours(25));
  EXPECT_EQ(s->out, reply(Status::absent)) << "nobody waits longer than a day";
}

TEST(StoreSessions, AllValuesTogetherAreBounded) {
  StoreSessions sessions("s");
  const auto now = StoreSessions::Clock::now();
  const auto s = sessions.open(now);
  sessions.receive(*s, encode({Op::hello, 0, "", "s"}), now);
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

}  // namespace
}  // namespace ring
