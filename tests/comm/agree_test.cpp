#include "comm/agree.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "comm/mesh/meeting.h"
#include "core/check.h"

namespace ring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Timeout kTime{10'000};
const Topic kTopic = {"settings", "the ranks differ", "Make them alike"};

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// A fixture that runs ranks as threads. run() returns the message of each rank's error; "" if there was none.
class AgreeOf : public testing::Test {
 protected:
  std::vector<std::string> run(int ranks, const std::function<void(Store&, int)>& fn) {
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Store> store = connect_store(server_.endpoint(), "c", kTime);
        errors[static_cast<std::size_t>(rank)] = message_of([&] { fn(*store, rank); });
      });
    for (std::thread& t : threads) t.join();
    return errors;
  }
  std::vector<std::string> compare(const std::vector<Facts>& facts) {
    return run(static_cast<int>(facts.size()), [&](Store& store, int rank) {
      agree(store, rank, static_cast<int>(facts.size()), kTopic, facts[static_cast<std::size_t>(rank)], kTime);
    });
  }
  void expect_all(const std::vector<std::string>& errors, const std::string& text) {
    for (const std::string& e : errors) EXPECT_EQ(e, text);
  }

  StoreServer server_{{"127.0.0.1", 0}, "c"};
};
using Agree = AgreeOf;

TEST_F(Agree, TheSameFactsPass) { expect_all(compare({4, {{"lr", "0.1"}, {"seed", "1"}}}), ""); }

TEST_F(Agree, ADifferenceIsTheSameErrorOnEveryRank) {
  const Facts a = {{"seed", "1"}, {"lr", "0.001"}, {"clip", "1"}}, b = {{"seed", "1"}, {"lr", "0.002"}, {"clip", "1"}};
  expect_all(compare({a, b, a, b, b, b}),
             "the ranks differ:\n  lr: 0.001 on ranks 0, 2; 0.002 on ranks 1, 3-5\nMake them alike");
}

TEST_F(Agree, EveryDifferentFactIsNamed) {
  expect_all(
      compare({{{"a", "1"}, {"b", "x"}, {"c", ""}}, {{"a", "2"}, {"b", "x"}, {"c", "y"}}, {{"a", "3"}, {"c", ""}}}),
      "the ranks differ:\n  a: 1 on rank 0; 2 on rank 1; 3 on rank 2\n  b: x on ranks 0, 1; absent on rank 2\n"
      "  c: nothing on ranks 0, 2; y on rank 1\nMake them alike");
}

TEST_F(Agree, ListsOfDifferentLengthsAreNotListedByElement) {
  expect_all(compare({{{"mixture", "1 element"}, {"mixture[0].weight", "1"}},
                      {{"mixture", "2 elements"}, {"mixture[0].weight", "2"}, {"mixture[1].weight", "1"}}}),
             "the ranks differ:\n  mixture: 1 element on rank 0; 2 elements on rank 1\nMake them alike");
}

TEST_F(Agree, LongValuesAndManyFactsAreCompared) {
  Facts facts;
  for (int i = 0; i < 20000; ++i) facts.push_back({"key " + std::to_string(i), std::string(200, 'x')});
  Facts other = facts;
  other.back().second += "y";  // far beyond the store's limit for one value
  for (const std::string& e : compare({facts, other}))
    EXPECT_NE(e.find("remaining facts, as a hash: "), std::string::npos) << e;
}

TEST_F(Agree, ALongValueIsShortened) {
  const std::string x(1000, 'x');
  for (const std::string& e : compare({{{"rules", x + "a"}}, {{"rules", x + "b"}}})) {
    EXPECT_NE(e.find("... (1001 characters with hash"), std::string::npos) << e;
    EXPECT_LT(e.size(), 500u);
  }
}

TEST_F(Agree, ManyRanksAreListedAsRanges) {
  std::vector<Facts> facts(64, {{"lr", "1"}});
  facts[40][0].second = "2";
  expect_all(compare(facts), "the ranks differ:\n  lr: 1 on ranks 0-39, 41-63; 2 on rank 40\nMake them alike");
}

TEST_F(Agree, MissingRanksAreNamedAfterTheTimeout) {
  const auto begin = Clock::now();
  const std::vector<std::string> errors = run(2, [&](Store& store, int rank) {
    agree(store, rank, 4, kTopic, {{"lr", "1"}}, Timeout(300));
  });
  for (const std::string& e : errors) {
    EXPECT_TRUE(e.starts_with("ranks 2, 3 did not arrive within 0.3 s")) << e;
    EXPECT_NE(e.find(str("they reach ", to_string(server_.endpoint()), "? ")), std::string::npos) << e;
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(Agree, TwoProcessesOfOneRankAreRefused) {
  const std::vector<std::string> errors = run(2, [&](Store& store, int) {
    agree(store, 1, 3, kTopic, {{"lr", "1"}}, Timeout(300));
  });
  EXPECT_NE((errors[0] + errors[1]).find("claim to be rank 1"), std::string::npos);
}

TEST_F(Agree, ADifferentNumberOfRanksIsRefused) {
  for (const std::string& e : run(2, [&](Store&store, int rank) {
         agree(store, rank, rank + 2, kTopic, {{"lr", "1"}}, kTime);
       }))
    EXPECT_NE(e.find("disagree on how many"), std::string::npos) << e;
}

TEST_F(Agree, AnErrorOfThePollEndsTheWait) {
  const auto begin = Clock::now();
  const std::vector<std::string> errors = run(1, [&](Store& store, int rank) {
    agree(store, rank, 2, kTopic, {{"lr", "1"}}, kTime, [] { fail("rank 1 died"); });
  });
  EXPECT_EQ(errors[0], "rank 1 died");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(Agree, TopicsFollowEachOther) {
  expect_all(run(3,
                 [&](Store& store, int rank) {
                   agree(store, rank, 3, kTopic, {{"lr", "1"}}, kTime);
                   agree(store, rank, 3, {"data", "other data", "Copy it"}, {{"hash", str(rank / 2)}}, kTime);
                 }),
             "other data:\n  hash: 0 on ranks 0, 1; 1 on rank 2\nCopy it");
}

WorkerEnvironment meeting_of(int rank, int world, int port, const std::string& cookie) {
  WorkerEnvironment env;
  env.rank = rank;
  env.world = env.local_world = world;
  env.host_store = true;
  env.store_ports = 16;
  env.store = {"127.0.0.1", port};
  env.cookie = cookie;
  return env;
}

TEST(AgreeMeeting, MissingRanksAreNamedWithTheAddressAndTheTimeout) {
  CommOptions options;
  options.connect_timeout = Timeout(400);
  const int port = 22000 + getpid() % 5000;
  const auto error_at = [&](int rank) {
    return message_of([&] {
      Meeting meeting(meeting_of(rank, 2, port, str("alone ", getpid())), options);
      meeting.check_agreement(kTopic, {});
    });
  };
  const std::string without_0 = error_at(1), without_1 = error_at(0), at = str("reach 127.0.0.1:", port, "? ");
  EXPECT_TRUE(without_0.starts_with("rank 0 did not arrive within 0.4 s")) << without_0;
  EXPECT_NE(without_0.find("can rank 1 " + at), std::string::npos) << without_0;
  EXPECT_EQ(without_0.find("tried for"), std::string::npos) << without_0;
  EXPECT_TRUE(without_1.starts_with("rank 1 did not arrive within 0.4 s")) << without_1;
  EXPECT_NE(without_1.find("can it " + at), std::string::npos) << without_1;
  for (const std::string& e : {without_0, without_1})
    EXPECT_NE(e.find("RINGMASTER_COMM_TIMEOUT"), std::string::npos) << e;
}

// Rank 0 hosts the store in its own process and ends with the error: the other ranks must have got it by then.
TEST(AgreeMeeting, TheHostLeavesLast) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> errors(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        errors[static_cast<std::size_t>(rank)] = message_of([&] {
          Meeting meeting(meeting_of(rank, 3, 21700, str("meeting ", round, " of ", getpid())));
          meeting.check_agreement(kTopic, {{"lr", str(rank)}});
        });
      });
    for (std::thread& t : threads) t.join();
    for (const std::string& e : errors)
      EXPECT_EQ(e, "the ranks differ:\n  lr: 0 on rank 0; 1 on rank 1; 2 on rank 2\nMake them alike");
  }
}

}  // namespace
}  // namespace ring
