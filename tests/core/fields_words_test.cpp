// A section that a word may replace, such as `parallel: auto`.
#include <gtest/gtest.h>

#include "core/check.h"
#include "core/fields.h"
#include "tests/error_of.h"

namespace ring {
namespace {

enum class Way : std::uint8_t { automatic, one };

struct WordedSection {
  struct Inner {
    std::int64_t rows = 0, width = 4;
    Way way = Way::one;
    void fields(Fields& f) {
      f("way", way, "a choice", choices<Way>({{"auto", Way::automatic}, {"one", Way::one}}));
      f("rows", rows, "at a time", in_range(0, 8), word("auto", -1));
      f("width", width, "has no word", in_range(1, 8));
    }
  };
  Inner inner, other;
  void fields(Fields& f) {
    f("inner", inner, "may be auto", word("auto", -1));
    f("other", other, "has no word");
  }
};

// The word of a section sets all of its integers that have the same word, but no choice of that name. A setting that is
// given later wins.
TEST(Fields, ASectionMayHaveAWord) {
  WordedSection c;
  load_config_text(c, "inner: auto", "a", {"inner.width=2"});
  EXPECT_EQ(c.inner.rows, -1);
  EXPECT_EQ(c.inner.way, Way::one);
  EXPECT_EQ(c.inner.width, 2);
  EXPECT_EQ(c.other.rows, 0);
  override_config(c, {"inner=auto", "inner.rows=3"});
  EXPECT_EQ(c.inner.rows, 3);
  EXPECT_EQ(to_yaml(c).find("inner: auto"), std::string::npos) << "printed by field";
  for (const char* wrong : {"inner=fast", "inner=3", "inner=\"auto\"", "other=auto"})
    EXPECT_THROW(override_config(c, {wrong}), Error) << wrong;
  const std::string error = error_of([&] { load_config_text(c, "inner: fast", "a"); });
  EXPECT_NE(error.find("a:1: inner: expected auto or a section of `key: value`, got fast"), std::string::npos) << error;
}

}  // namespace
}  // namespace ring
