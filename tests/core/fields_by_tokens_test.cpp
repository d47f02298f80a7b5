// Settings that change at token counts: [[0, 32], [1e9, 64]].
#include <gtest/gtest.h>

#include "core/fields.h"
#include "tests/error_of.h"

namespace ring {
namespace {

struct Changing {
  std::int64_t rows = 8;
  TokenSchedule changes;
  void fields(Fields& f) { f("rows", rows, "at a time", in_range(1, 64), by_tokens(changes)); }
};

TEST(Fields, AnIntegerMayChangeByTokens) {
  Changing c;
  load_config_text(c, "rows: [[0, 32], [1e9, 64], [2000000000, 16]]", "a");
  EXPECT_EQ(c.rows, 64) << "the largest";
  EXPECT_EQ(c.changes, (TokenSchedule{{0, 32}, {1'000'000'000, 64}, {2'000'000'000, 16}}));
  EXPECT_EQ(to_yaml(c), "rows: [[0, 32], [1000000000, 64], [2000000000, 16]]\n");
  EXPECT_EQ(global_values(c)[0].second, "[[0, 32], [1000000000, 64], [2000000000, 16]]");
  Changing again;
  load_config_text(again, to_yaml(c), "b");
  EXPECT_EQ(to_yaml(again), to_yaml(c));
  EXPECT_EQ(diff_configs(c, again), std::vector<std::string>{});
  override_config(again, {"rows=[[0,32],[1e9,48]]"});
  EXPECT_FALSE(diff_configs(c, again).empty());
  override_config(c, {"rows=3"});
  EXPECT_EQ(to_yaml(c), "rows: 3\n") << "a number ends the schedule";
  override_config(c, {"rows=[[0, 5]]"});
  EXPECT_EQ(to_yaml(c), "rows: 5\n") << "one value never changes";
  for (const std::int64_t tokens : {0, 999'999'999, 1'000'000'000, 1'999'999'999, 2'000'000'000})
    EXPECT_EQ(value_at({{0, 32}, {1'000'000'000, 64}, {2'000'000'000, 16}}, tokens, 7), tokens < 1'000'000'000   ? 32
                                                                                        : tokens < 2'000'000'000 ? 64
                                                                                                                 : 16);
  EXPECT_EQ(value_at({}, 5, 7), 7);
  EXPECT_NE(describe_config<Changing>().find("integer or `[[0, integer], [tokens, integer], ...]`, in [1, 64]"),
            std::string::npos);
}

struct ChangingShare {
  double share = 1;
  TokenSchedule changes;
  void fields(Fields& f) { f("share", share, "of all", in_range(0, 2), by_tokens(changes)); }
};

TEST(Fields, ANumberMayChangeByTokens) {
  ChangingShare c;
  load_config_text(c, "share: [[0, 0.25], [1e9, 1.5], [2e9, 0]]", "a");
  EXPECT_EQ(c.share, 1.5) << "the largest";
  EXPECT_EQ(c.changes, (TokenSchedule{{0, 0.25}, {1'000'000'000, 1.5}, {2'000'000'000, 0}}));
  EXPECT_EQ(to_yaml(c), "share: [[0, 0.25], [1000000000, 1.5], [2000000000, 0]]\n");
  ChangingShare again;
  load_config_text(again, to_yaml(c), "b");
  EXPECT_EQ(diff_configs(c, again), std::vector<std::string>{});
  EXPECT_EQ(value_at(c.changes, 999'999'999, c.share), 0.25);
  EXPECT_EQ(value_at(c.changes, 1'000'000'000, c.share), 1.5);
  override_config(c, {"share=0.75"});
  EXPECT_EQ(to_yaml(c), "share: 0.75\n") << "a number ends the schedule";
  EXPECT_NE(describe_config<ChangingShare>().find("number or `[[0, number], [tokens, number], ...]`, in [0, 2]"),
            std::string::npos);
  const auto wrong = [](const std::string& share) {
    return error_of([&] {
      ChangingShare none;
      load_config_text(none, "share: " + share, "a");
    });
  };
  EXPECT_EQ(wrong("[[0, 1], [5, 2.5]]"), "a:1: share: must be in [0, 2], is 2.5");
  EXPECT_EQ(wrong("[[0, -1], [5, 2]]"), "a:1: share: must be in [0, 2], is -1");
  EXPECT_EQ(wrong("[0.5]"), "a:1: share: expected [tokens, number], such as in [[0, 0.9], [1e9, 0.5]], got 0.5");
  for (const char* none : {"[[0, .inf], [1, 1]]", "[[0, x]]", "[[0.5, 1]]", "[[0, 1], [1e300, 2]]"})
    EXPECT_NE(wrong(none), "") << none;
}

TEST(Fields, MalformedSchedulesAreRefused) {
  const auto wrong = [](const std::string& rows) {
    return error_of([&] {
      Changing c;
      load_config_text(c, "rows: " + rows, "a");
    });
  };
  EXPECT_EQ(wrong("[[1, 32]]"), "a:1: rows: must begin at 0 tokens, begins at 1");
  EXPECT_EQ(wrong("[[0, 2], [9, 4], [9, 8]]"), "a:1: rows: tokens must ascend, but 9 comes after 9");
  EXPECT_EQ(wrong("[[0, 2], [5, 65]]"), "a:1: rows: must be in [1, 64], is 65");
  EXPECT_EQ(wrong("[[0, 0], [5, 64]]"), "a:1: rows: must be in [1, 64], is 0") << "one that is not the largest";
  EXPECT_EQ(wrong("[]"), "a:1: rows: must not be empty");
  EXPECT_EQ(wrong("[32, 64]"), "a:1: rows: expected [tokens, integer], such as in [[0, 32], [1e9, 64]], got 32");
  for (const char* none :
       {"[[0]]", "[[0, 1, 2]]", "[[0, x]]", "[[0, 1.5]]", "[[-1, 2]]", "[[0, [1]]]", "[[0, \"1\"]]", "{tokens: 0}",
        "[[0, 1], [1e30, 2]]", "[[0, 1], [9223372036854775807, 2]]", "[[0, 9223372036854775807], [1, 2]]"})
    EXPECT_NE(wrong(none), "") << none;
}

}  // namespace
}  // namespace ring
