// Classes of characters come from one table of one Unicode version, whatever version the libraries use.
#include "text/unicode/categories.h"

#include <gtest/gtest.h>

#include "text/bpe/regex.h"

namespace ring {
namespace {

// Counts are those of DerivedGeneralCategory.txt and Scripts.txt of Unicode 16.0, in the lines "# Total code points".
TEST(Categories, MatchUnicode16) {
  const auto count = [](std::string_view name) {
    std::size_t all = 0;
    for (const auto& [first, last] : unicode::characters_of(name)) all += last - first + 1;
    return all;
  };
  const std::pair<std::string_view, std::size_t> totals[] = {
      {"Lu", 1858}, {"Ll", 2258}, {"Lt", 31},     {"Lm", 404},   {"Lo", 136477}, {"Mn", 2020}, {"Mc", 468},
      {"Me", 13},   {"Nd", 760},  {"Nl", 236},    {"No", 915},   {"Pc", 10},     {"Pd", 27},   {"Ps", 79},
      {"Pe", 77},   {"Po", 640},  {"Sm", 950},    {"Sc", 63},    {"Sk", 125},    {"So", 7376}, {"Zs", 17},
      {"Cf", 170},  {"Cs", 2048}, {"Co", 137468}, {"L", 141028}, {"Han", 99030}};
  for (const auto& [name, total] : totals) EXPECT_EQ(count(name), total) << name;
  using unicode::Category;
  EXPECT_EQ(unicode::category(U'A'), Category::lu);
  EXPECT_EQ(unicode::category(U'z'), Category::ll);
  EXPECT_EQ(unicode::category(0x1FAE8), Category::so) << "since 15.0";
  EXPECT_EQ(unicode::category(0x2EE5D), Category::lo) << "since 15.1";
  EXPECT_EQ(unicode::category(0x105C0), Category::lo) << "since 16.0";
  EXPECT_EQ(unicode::category(0x16EA0), Category::cn) << "since 17.0";
  EXPECT_TRUE(unicode::characters_of("Lx").empty());
}

#ifdef RING_WITH_PCRE2
// Expected classes are those of Oniguruma in tokenizers 0.23, whatever Unicode versions the libraries here have.
TEST(Regex, PatternsThatPcre2MatchesHaveTheSameClasses) {
  const auto words = [](const std::string& pattern, std::string_view text) {
    std::vector<std::string> all;
    for (const bpe::Match& m : bpe::Regex(pattern).find(text)) all.emplace_back(text.substr(m.begin, m.end - m.begin));
    return all;
  };
  using Words = std::vector<std::string>;
  const std::string symbol = "\U0001FAE8", letter = "\U000105C0", han = "\U0002EBF0",
                    digit = "\U00010D40";  // new in 15 to 16
  EXPECT_EQ(words(R"( ?[\p{P}\p{S}]+|\p{L}+)", "ab " + symbol + letter), (Words{"ab", " " + symbol, letter}));
  EXPECT_EQ(words(R"([^\p{L}\p{N}]+)", "a" + symbol + letter + digit), Words{symbol});
  EXPECT_EQ(words(R"(\P{L}+|\p{^N})", letter + symbol + "1"), (Words{letter, symbol + "1"}));
  EXPECT_EQ(words(R"([\P{L}x]+)", letter + symbol + "x" + han), (Words{symbol + "x"}));
  EXPECT_EQ(words(R"(\p{Han}+)", "a\u4E00" + han + "b"), Words{"\u4E00" + han});
  EXPECT_EQ(words(R"([\d]+|\D)", digit + "1" + letter), (Words{digit + "1", letter}));
  EXPECT_EQ(words(R"(\pL+)", "a" + letter + "1"), Words{"a" + letter});
  EXPECT_EQ(words(R"(\p{Cn})", symbol + letter + "\U00016EA0"), Words{"\U00016EA0"}) << "17.0";
  EXPECT_EQ(words(R"(\p{Latin}+)", "ab\u0433"), Words{"ab"}) << "scripts but Han are PCRE2's";
}
#endif

}  // namespace
}  // namespace ring
