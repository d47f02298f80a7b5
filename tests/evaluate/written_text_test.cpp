#include "evaluate/written_text.h"

#include <gtest/gtest.h>

#include "evaluate/prompt.h"

namespace ring {
namespace {

// Pushes the tokens of a text, each a byte.
std::string written(WrittenText& w, const Tokenizer& tokenizer, const std::string& text) {
  std::string shown;
  for (const std::int32_t id : tokenizer.encode(text))
    if (w.goes_on()) shown += w.push(id);
  return shown + w.finish();
}

TEST(WrittenText, EndsBeforeAStopString) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  WrittenText w(bytes, {.stops = {"xyz", "\u00e4!"}});
  EXPECT_EQ(written(w, *bytes, "a xy \u00e4 \u00e4! b"), "a xy \u00e4 ");
  EXPECT_EQ(w.end(), "stop");
  EXPECT_EQ(w.stop(), "\u00e4!");
  EXPECT_EQ(w.text(), "a xy \u00e4 ");
  EXPECT_EQ(w.tokens(), 11);
  WrittenText open(bytes, {.stops = {"xyz"}});
  EXPECT_EQ(written(open, *bytes, "a xy"), "a xy");  // what was held back comes at the end
  EXPECT_EQ(open.end(), "length");
}

TEST(WrittenText, EndsWithTheEndOfText) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  const std::int32_t end = bytes->end_of_text().value();
  WrittenText w(bytes, {});
  EXPECT_EQ(w.push('a'), "a");
  EXPECT_EQ(w.push(end), "");
  EXPECT_FALSE(w.goes_on());
  EXPECT_EQ(w.end(), "end_of_text");
  EXPECT_EQ(w.tokens(), 1);
  WrittenText past(bytes, {.ignore_end_of_text = true});
  past.push(end);
  EXPECT_TRUE(past.goes_on());
}

TEST(WrittenText, EndsWithAnyTokenThatThePublishedFilesName) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  for (const std::string text : {"ab%c", "ab&c"}) {
    WrittenText w(bytes, {.more_tokens = {'%', '&'}});
    EXPECT_EQ(written(w, *bytes, text), "ab") << text;
    EXPECT_EQ(w.end(), "end_of_text") << text;
  }
  WrittenText own(bytes, {.more_tokens = {'%'}});
  own.push(bytes->end_of_text().value());
  EXPECT_FALSE(own.goes_on());
  WrittenText past(bytes, {.more_tokens = {'%'}, .ignore_end_of_text = true});
  EXPECT_EQ(written(past, *bytes, "a%b"), "a%b");
}

// What the end is, and blank space around the text, however tokens cut it.
TEST(WrittenText, AnswersEndWithATokenOfTheirOwn) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  WrittenText w(bytes, {.stops = {"##"}, .token = '%', .strip = true});
  EXPECT_EQ(written(w, *bytes, " \n a  b \n%c"), "a  b");
  EXPECT_EQ(w.end(), "end_of_answer");
  EXPECT_EQ(w.text(), "a  b");
  EXPECT_EQ(w.tokens(), 9);
  WrittenText stopped(bytes, {.stops = {"##"}, .token = '%', .strip = true});
  EXPECT_EQ(written(stopped, *bytes, "a\n\n##%"), "a");
  EXPECT_EQ(stopped.end(), "stop");
  WrittenText blank(bytes, {.strip = true});
  EXPECT_EQ(written(blank, *bytes, " \n "), "");
}

TEST(PromptTokens, AreNeverNone) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  EXPECT_EQ(prompt_tokens(*bytes, "ab"), (std::vector<std::int32_t>{'a', 'b'}));
  EXPECT_EQ(prompt_tokens(*bytes, ""), std::vector<std::int32_t>{bytes->end_of_text().value()});
}

}  // namespace
}  // namespace ring
