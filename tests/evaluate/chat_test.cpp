// A chat gives the model the same tokens as its training did.

#include "evaluate/chat.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "data/load_chat_format.h"
#include "data/load_tokenizer.h"
#include "data/prepare.h"
#include "data/token_store.h"
#include "tests/data/corpus_case.h"
#include "text/bpe/train.h"
#include "text/sentencepiece_train.h"

namespace ring {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;

// An answer begins within a word of the tokenizer's pattern: the tokens agree only if the text is split there.
constexpr const char* kLines =
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

const std::vector<ChatMessage> kTalk = {{"system", "Be brief."},
                                        {"user", "Hi there"},
                                        {"assistant", ":) yes"},
                                        {"user", "Bye then <|im_end|>"},
                                        {"assistant", ":: caf\u00e9"}};

class Corpus {
 public:
  std::string text() const {
    std::string all;
    for (int i = 0; i < 300; ++i) all += "user: Hi there assistant::) yes:: cafe " + std::to_string(i) + "\n";
    return all;
  }
  TextSource source() const {
    return [t = text()](const auto& take) { take(t); };
  }
  std::string sentencepiece() {
    save_tokenizer(*train_sentencepiece(source(), {.vocab_size = 320}), folder_ / "sp.rmt");
    return folder_ / "sp.rmt";
  }
  // Returns a tokenizer with special tokens for the marks of chatml.
  std::string byte_bpe() {
    OrderedJson j = OrderedJson::parse(bpe::train_byte_bpe(source(), {.vocab_size = 330})->plain_file());
    std::size_t next = j["model"]["vocab"].size();
    for (const char* mark : {"<|im_start|>", "<|im_end|>"})
      j["added_tokens"].push_back({{"id", next++},
                                   {"content", mark},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false},
                                   {"special", true}});
    write_text(folder_ / "tokenizer.json", j.dump());
    return folder_ / "tokenizer.json";
  }
  std::string lines() {
    write_text(folder_ / "lines.jinja", kLines);
    return folder_ / "lines.jinja";
  }
  void prepare(const std::string& tokenizer, const std::string& chat_template) {
    OrderedJson list = OrderedJson::array();
    for (const ChatMessage& m : kTalk) list.push_back({{"role", m.role}, {"content", m.content}});
    write_text(folder_ / "in.jsonl", OrderedJson{{"messages", list}}.dump() + "\n");
    PrepareOptions o;
    o.inputs = {folder_ / "in.jsonl"};
    o.tokenizer = tokenizer;
    o.chat_template = chat_template;
    o.members.messages = "messages";
    o.output = folder_ / "out.h5";
    o.validation_fraction = 0;
    o.threads = 1;
    prepare_corpus(o);
    const auto store = TokenStore::open(o.output);
    ids.resize(store->train().tokens());
    counts.resize(ids.size());
    store->train().read(0, ids.size(), ids.data());
    store->train().read_mask(0, ids.size(), counts.data());
  }
  Ids ids;
  std::vector<std::uint8_t> counts;

 private:
  TempFolder folder_;
};

// Expects the document to equal the prompt up to message n, which the assistant writes. After the prompt, an answer
// follows, which ends where the tokens stop counting as targets.
void expect_answer(const Corpus& corpus, const Chat& chat, const std::shared_ptr<const Tokenizer>& tokenizer,
                   std::size_t n, const std::string& end) {
  const Ids prompt = chat.encode_prompt({kTalk.begin(), kTalk.begin() + static_cast<std::ptrdiff_t>(n)}, 1000);
  ASSERT_LT(prompt.size(), corpus.ids.size());
  EXPECT_EQ(prompt, Ids(corpus.ids.begin(), corpus.ids.begin() + static_cast<std::ptrdiff_t>(prompt.size())));
  EXPECT_FALSE(corpus.counts[prompt.size() - 1]);
  GeneratedText text(tokenizer, chat.answer_ending({}));
  std::size_t at = prompt.size();
  while (at < corpus.ids.size() && text.continues()) {
    EXPECT_TRUE(corpus.counts[at]) << at;
    text.push(corpus.ids[at++]);
  }
  text.finish();
  EXPECT_EQ(text.text(), kTalk[n].content);
  EXPECT_EQ(text.end(), end);
  EXPECT_TRUE(at == corpus.ids.size() || !corpus.counts[at]) << "the answer goes on";
}

void expect_as_trained(Corpus& corpus, const std::string& tokenizer_spec, const std::string& chat_template,
                       const std::string& end) {
  SCOPED_TRACE(tokenizer_spec + " " + chat_template);
  corpus.prepare(tokenizer_spec, chat_template);
  const auto tokenizer = load_tokenizer(tokenizer_spec);
  const Chat chat(load_chat_format(chat_template, tokenizer_spec, *tokenizer), "t", tokenizer);
  expect_answer(corpus, chat, tokenizer, 2, end);
  expect_answer(corpus, chat, tokenizer, 4, end);
}

TEST(Chat, TokensEqualThoseOfTheCorpus) {
  Corpus c;
  expect_as_trained(c, "bytes", "chatml", "stop");
  expect_as_trained(c, "bytes", "plain", "end_of_text");
  expect_as_trained(c, "bytes", c.lines(), "end_of_text");
  const std::string sentencepiece = c.sentencepiece();
  for (const char* name : {"plain", "llama2", "mistral"}) expect_as_trained(c, sentencepiece, name, "end_of_text");
  expect_as_trained(c, sentencepiece, "chatml", "stop");
}

TEST(Chat, SpecialTokensEndAnswers) {
#ifndef RING_WITH_UTF8PROC
  GTEST_SKIP() << "a tokenizer.json needs utf8proc";
#endif
  Corpus c;
  const std::string bpe = c.byte_bpe();
  expect_as_trained(c, bpe, "chatml", "end_of_answer");
  expect_as_trained(c, bpe, c.lines(), "end_of_text");
}

TEST(Chat, ErrorsOfTheTemplateAreReported) {
  const auto bytes = bytes_tokenizer();
  const Chat llama(load_chat_format("llama2", "bytes", *bytes), "llama2", bytes);
  expect_error([&] { llama.encode_prompt({{"critic", "x"}}, 100); }, {"llama2", "no 'critic'"});
  expect_error([&] { llama.encode_prompt({}, 100); }, {"empty"});
  const Chat silent({"{# nothing #}", {}}, "t", bytes);
  expect_error([&] { silent.encode_prompt({{"user", "x"}}, 100); }, {"produces no text"});
}

// The prompt is refused before the search for its answers, which takes time quadratic in their number.
TEST(Chat, AConversationThatCannotFitIsRefusedAtOnce) {
  const auto bytes = bytes_tokenizer();
  const Chat chat({kLines, {{"eos_token", ""}}}, "t", bytes);
  std::vector<ChatMessage> talk;
  for (int i = 0; i < 5000; ++i) {
    talk.push_back({"user", "q"});
    talk.push_back({"assistant", "a"});
  }
  const std::clock_t begin = std::clock();
  expect_error([&] { chat.encode_prompt(talk, 400); }, {"the conversation has ", "the model's context is 400"});
  EXPECT_LT(std::clock() - begin, 2 * CLOCKS_PER_SEC);
  const std::vector<ChatMessage> little(talk.begin(), talk.begin() + 3);
  const std::size_t tokens = chat.encode_prompt(little, 400).size();
  EXPECT_EQ(chat.encode_prompt(little, static_cast<std::int64_t>(tokens) + 1).size(), tokens);
  expect_error([&] { chat.encode_prompt(little, static_cast<std::int64_t>(tokens)); }, {"the conversation has "});
}

}  // namespace
}  // namespace ring
