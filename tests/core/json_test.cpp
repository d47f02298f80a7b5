// Tests that the JSON parser returns what nlohmann's own parser returns, in linear time.
#include "core/json.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/philox.h"

namespace ring {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

template <class Json = json>
std::string refused(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json<Json>(text, limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Returns {"k0": value, "k1": value, ...}.
std::string object_of(std::size_t entries, const std::string& value = "0") {
  std::string text = "{";
  for (std::size_t i = 0; i < entries; ++i) text += str(i ? "," : "", "\"k", i, "\":", value);
  return text + "}";
}

std::string array_of(std::size_t entries, const std::string& value) {
  std::string text = "[";
  for (std::size_t i = 0; i < entries; ++i) text += (i ? "," : "") + value;
  return text + "]";
}

// Returns a pseudorandom value that depends only on `n`, with nesting, escapes and all types.
template <class Json>
Json value_of(std::uint64_t n, int depth = 0) {
  const std::uint64_t bits = random_bits({11, 0, 0}, n);
  switch (depth > 4 ? bits % 6 : bits % 8) {
    case 0: return nullptr;
    case 1: return bits % 16 < 8;
    case 2: return static_cast<std::int64_t>(bits);
    case 3: return bits;
    case 4: return static_cast<double>(bits) * 1e-7;
    case 5: return str("a\n\"\u00e9", bits);
    case 6: {
      Json list = Json::array();
      for (std::uint64_t i = 0; i < bits / 8 % 6; ++i) list.push_back(value_of<Json>(n * 7 + i, depth + 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (std::uint64_t i = 0; i < bits / 8 % 6; ++i)
        object[str(random_bits({12, 0, 0}, n + i) % 100)] = value_of<Json>(n * 7 + i, depth + 1);
      return object;
    }
  }
}

TEST(Json, ParsesLikeNlohmann) {
  for (std::uint64_t n = 0; n < 2000; ++n) {
    const std::string text = value_of<ordered_json>(n).dump();
    EXPECT_EQ(parse_json<json>(text), json::parse(text));
    EXPECT_EQ(parse_json<ordered_json>(text).dump(), text);
    EXPECT_EQ(parse_own_json<json>(text), json::parse(text));
  }
}

TEST(Json, TheLastOfEqualKeysWins) {
  const std::string text = R"({"b":1,"a":{"x":[1],"x":2},"b":{"y":3},"c":4,"b":5})";
  EXPECT_EQ(parse_json<ordered_json>(text).dump(), R"({"b":5,"a":{"x":2},"c":4})");
  EXPECT_EQ(parse_json<json>(text).dump(), R"({"a":{"x":2},"b":5,"c":4})");
  EXPECT_EQ(ordered_json::parse(text).dump(), R"({"b":5,"a":{"x":2},"c":4})") << "as in nlohmann";
}

TEST(Json, EqualKeysCanBeRefused) {
  const JsonLimits unique{.duplicate_keys = DuplicateKeys::refused};
  const std::string twice = R"([{"a":{"b":1}},{"a":1,"c":2,"a":1}])", apart = R"([{"a":{"a":1}},{"a":1}])";
  EXPECT_EQ(refused<json>(twice, unique), "it has the key 'a' twice");
  EXPECT_EQ(refused<ordered_json>(twice, unique), "it has the key 'a' twice");
  EXPECT_EQ(refused<json>(apart, unique), "");
  EXPECT_EQ(refused<ordered_json>(apart, unique), "");
}

TEST(Json, ErrorsSayWhatIsWrong) {
  EXPECT_EQ(refused("{\"a\":}").find("parse error at line 1, column 6"), 0u) << refused("{\"a\":}");
  EXPECT_NE(refused("1e999"), "");
  EXPECT_NE(refused(""), "");
  EXPECT_NE(refused("[1] 2"), "");
  EXPECT_NE(refused("\"\xff\""), "");
}

TEST(Json, LimitsAreChecked) {
  EXPECT_EQ(refused("[1,2]", {.bytes = 5}), "");
  EXPECT_EQ(refused("[1,22]", {.bytes = 5}), "expected at most 5 bytes, got 6");
  EXPECT_EQ(refused("[[{}]]", {.depth = 3}), "");
  EXPECT_EQ(refused("[[{\"a\":1}]]", {.depth = 3}), "");
  EXPECT_EQ(refused("[[{\"a\":[]}]]", {.depth = 3}), "it is nested more than 3 levels deep");
  EXPECT_EQ(refused(std::string(1'000'000, '[')), "it is nested more than 100 levels deep");
  EXPECT_EQ(refused("[1,[2,{\"a\":3}]]", {.entries = 5}), "");
  EXPECT_EQ(refused("[1,[2,{\"a\":3,\"b\":4}]]", {.entries = 5}), "it has more than 5 entries");
}

// Returns the units of work of one parse, rounded down to a multiple of kJsonWorkPerCheck.
template <class Json>
std::size_t work_of(const std::string& text) {
  std::size_t checks = 0;
  parse_json<Json>(text, {.stop = [&] { return ++checks, false; }});
  return checks * kJsonWorkPerCheck;
}

// A key costs one unit for itself, one for its value, and the comparisons of a sort.
TEST(Json, WorkIsLinear) {
  constexpr std::size_t kFew = 4'000, kMany = 40'000;
  for (const auto& make : {+[](std::size_t n) { return object_of(n); }, +[](std::size_t n) { return array_of(n, "0"); },
                           +[](std::size_t n) { return array_of(n, "[]"); },
                           +[](std::size_t n) { return array_of(n, R"({"a":1,"b":2})"); },
                           +[](std::size_t n) { return object_of(n, R"({"shape":[1],"data_offsets":[0,4]})"); }}) {
    const std::size_t few = work_of<ordered_json>(make(kFew)), many = work_of<ordered_json>(make(kMany));
    EXPECT_GE(many + kJsonWorkPerCheck, kMany) << make(2);
    EXPECT_LE(many, 16 * (few + kJsonWorkPerCheck)) << make(2);
    EXPECT_LE(work_of<json>(make(kMany)), many) << make(2);
  }
}

TEST(Json, StopEndsTheParse) {
  std::size_t checks = 0;
  const auto stop = [&] { return ++checks == 3; };
  EXPECT_THROW(parse_json<json>(array_of(40'000, "0"), {.stop = stop}), JsonStopped);
  EXPECT_EQ(checks, 3u) << "parsing continued after the stop";
  checks = 0;
  EXPECT_THROW(parse_json<ordered_json>(object_of(40'000), {.stop = stop}), JsonStopped);
  EXPECT_EQ(checks, 3u);
  EXPECT_EQ(parse_json<json>("[1]", {.stop = [] { return true; }}), json({1})) << "a short text never calls stop";
}

// The default of JsonLimits::stop reacts to a real signal.
[[noreturn]] void parse_until_a_stop_signal() {
  const std::string text = array_of(40'000, "0");
  {
    StopSignal signal(/*announces=*/false);
    EXPECT_EQ(parse_json<json>(text).size(), 40'000u);
    kill(getpid(), SIGTERM);
    while (!signal.requested()) std::this_thread::yield();
    EXPECT_THROW(parse_json<json>(text), JsonStopped);
    EXPECT_EQ(parse_own_json<json>(text).size(), 40'000u) << "a checkpoint is still saved";
  }
  const StopSignal next(/*announces=*/false);
  EXPECT_EQ(parse_json<json>(text).size(), 40'000u);
  std::exit(testing::Test::HasFailure() ? 1 : 0);
}

// Runs in a process of its own, since threads left by other tests do not block the signal.
TEST(JsonDeathTest, AStopSignalEndsTheParse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(parse_until_a_stop_signal(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ring
