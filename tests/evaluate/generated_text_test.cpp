#include "evaluate/generated_text.h"

#include <gtest/gtest.h>

#include "evaluate/prompt.h"

namespace ring {
namespace {

// Pushes the tokens of a text, one per byte. Returns the text that is shown.
std::string push_text(GeneratedText& w, const Tokenizer& tokenizer, const std::string& text) {
  std::string shown;
  for (const std::int32_t id : tokenizer.encode(text))
    if (w.continues()) shown += w.push(id);
  return shown + w.finish();
}

TEST(GeneratedText, EndsBeforeAStopString) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  GeneratedText w(bytes, {.stops = {"xyz", "\u00e4!"}});
  EXPECT_EQ(push_text(w, *bytes, "a xy \u00e4 \u00e4! b"), "a xy \u00e4 ");
  EXPECT_EQ(w.end(), "stop");
  EXPECT_EQ(w.stop(), "\u00e4!");
  EXPECT_EQ(w.text(), "a xy \u00e4 ");
  EXPECT_EQ(w.tokens(), 11);
  GeneratedText open(bytes, {.stops = {"xyz"}});
  EXPECT_EQ(push_text(open, *bytes, "a xy"), "a xy");  // text that was held back is released at the end
  EXPECT_EQ(open.end(), "length");
}

TEST(GeneratedText, EndsWithTheEndOfText) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  const std::int32_t end = bytes->end_of_text().value();
  GeneratedText w(bytes, {});
  EXPECT_EQ(w.push('a'), "a");
  EXPECT_EQ(w.push(end), "");
  EXPECT_FALSE(w.continues());
  EXPECT_EQ(w.end(), "end_of_text");
  EXPECT_EQ(w.tokens(), 1);
  GeneratedText past(bytes, {.ignore_end_of_text = true});
  past.push(end);
  EXPECT_TRUE(past.continues());
}

TEST(GeneratedText, EndsWithAnyEndTokenOfThePublishedFiles) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  for (const std::string text : {"ab%c", "ab&c"}) {
    GeneratedText w(bytes, {.more_tokens = {'%', '&'}});
    EXPECT_EQ(push_text(w, *bytes, text), "ab") << text;
    EXPECT_EQ(w.end(), "end_of_text") << text;
  }
  GeneratedText own(bytes, {.more_tokens = {'%'}});
  own.push(bytes->end_of_text().value());
  EXPECT_FALSE(own.continues());
  GeneratedText past(bytes, {.more_tokens = {'%'}, .ignore_end_of_text = true});
  EXPECT_EQ(push_text(past, *bytes, "a%b"), "a%b");
}

// The end token and blank space around the text are left out, however tokens split them.
TEST(GeneratedText, AnswersEndWithTheirOwnToken) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  GeneratedText w(bytes, {.stops = {"##"}, .token = '%', .strip = true});
  EXPECT_EQ(push_text(w, *bytes, " \n a  b \n%c"), "a  b");
  EXPECT_EQ(w.end(), "end_of_answer");
  EXPECT_EQ(w.text(), "a  b");
  EXPECT_EQ(w.tokens(), 9);
  GeneratedText stopped(bytes, {.stops = {"##"}, .token = '%', .strip = true});
  EXPECT_EQ(push_text(stopped, *bytes, "a\n\n##%"), "a");
  EXPECT_EQ(stopped.end(), "stop");
  GeneratedText blank(bytes, {.strip = true});
  EXPECT_EQ(push_text(blank, *bytes, " \n "), "");
}

TEST(PromptTokens, AreNeverEmpty) {
  const std::shared_ptr<const Tokenizer> bytes = bytes_tokenizer();
  EXPECT_EQ(prompt_tokens(*bytes, "ab"), (std::vector<std::int32_t>{'a', 'b'}));
  EXPECT_EQ(prompt_tokens(*bytes, ""), std::vector<std::int32_t>{bytes->end_of_text().value()});
}

}  // namespace
}  // namespace ring
