// Corpora of pairs of answers: their documents, which tokens count, refused records, and rows of whole pairs.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "data/loader.h"
#include "data/packing.h"
#include "data/prepare.h"
#include "data/token_store.h"
#include "tests/data/corpus_case.h"

namespace ring {
namespace {

struct PairFolder : TempFolder {
  PrepareOptions options(PreferenceForm form) {
    PrepareOptions o;
    o.inputs = {*this / "in"};
    o.tokenizer = "bytes";
    o.output = *this / "out.h5";
    o.validation_fraction = 0;
    o.threads = 2;
    o.members.preferences = form;
    if (form == PreferenceForm::messages) o.chat_template = "chatml";
    return o;
  }
};

// Returns the documents of a split, with [[ ]] around the tokens that count and without end-of-text tokens.
std::vector<std::string> documents(const TokenStore& store, const TokenSplit& split) {
  const auto tokenizer = store.tokenizer();
  std::vector<std::string> all;
  for (std::uint64_t d = 0; d < split.documents(); ++d) {
    const std::uint64_t begin = split.document_start(d), n = split.document_start(d + 1) - begin;
    std::vector<std::int32_t> ids(n);
    std::vector<std::uint8_t> counts(n);
    split.read(begin, n, ids.data());
    split.read_mask(begin, n, counts.data());
    std::string text;
    for (std::size_t i = 0; i < n; ++i) {
      if (counts[i] && (i == 0 || !counts[i - 1])) text += "[[";
      text += tokenizer->bytes_of(ids[i]);
      if (counts[i] && (i + 1 == n || !counts[i + 1])) text += "]]";
    }
    all.push_back(text);
  }
  return all;
}
using Documents = std::vector<std::string>;

TEST(PreferenceCorpus, ATextRecordBecomesTwoDocuments) {
  PairFolder folder;
  write_text(folder / "in/a.jsonl",
             "{\"prompt\": \"2+2=\", \"chosen\": \"4\", \"rejected\": \"five\"}\n"
             "{\"rejected\": \"b\", \"chosen\": \"a\", \"prompt\": \"\"}\n");
  const PrepareReport r = prepare_corpus(folder.options(PreferenceForm::text));
  EXPECT_EQ(r.documents[0], 4u);
  const auto store = TokenStore::open(folder / "out.h5");
  EXPECT_TRUE(store->train().pairs());
  EXPECT_EQ(documents(*store, store->train()), (Documents{"2+2=[[4]]", "2+2=[[five]]", "[[a]]", "[[b]]"}));
}

// Earlier answers in the prompt do not count. Without `prompt`, it is what both lists begin with, as in TRL.
TEST(PreferenceCorpus, MessagesAreWrittenByTheTemplate) {
  PairFolder folder;
  write_text(folder / "in/a.jsonl",
             R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
             R"({"role": "user", "content": "c"}], "chosen": [{"role": "assistant", "content": "good"}], )"
             R"("rejected": [{"role": "assistant", "content": "bad"}]})"
             "\n"
             R"({"chosen": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], )"
             R"("rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "z"}]})"
             "\n");
  prepare_corpus(folder.options(PreferenceForm::messages));
  const auto store = TokenStore::open(folder / "out.h5");
  const std::string first =
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
      "<|im_start|>assistant\n";
  const std::string second = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(documents(*store, store->train()), (Documents{first + "[[good<|im_end|>]]\n", first + "[[bad<|im_end|>]]\n",
                                                          second + "[[y<|im_end|>]]\n", second + "[[z<|im_end|>]]\n"}));
}

TEST(PreferenceCorpus, BothAnswersAreInTheSameSplit) {
  PairFolder folder;
  std::string records;
  for (int i = 0; i < 200; ++i)
    records += str("{\"prompt\": \"", i, ":\", \"chosen\": \"yes", i, "\", \"rejected\": \"no", i, "\"}\n");
  write_text(folder / "in/a.jsonl", records);
  PrepareOptions o = folder.options(PreferenceForm::text);
  o.validation_fraction = 0.3;
  prepare_corpus(o);
  const auto store = TokenStore::open(folder / "out.h5");
  EXPECT_GT(store->validation().documents(), 60u);
  EXPECT_GT(store->train().documents(), 200u);
  for (const TokenSplit* split : {&store->train(), &store->validation()}) {
    const Documents all = documents(*store, *split);
    ASSERT_EQ(all.size() % 2, 0u);
    for (std::size_t d = 0; d < all.size(); d += 2) {
      const std::string prompt = all[d].substr(0, all[d].find(':') + 1), number = prompt.substr(0, prompt.size() - 1);
      EXPECT_EQ(all[d], prompt + "[[yes" + number + "]]");
      EXPECT_EQ(all[d + 1], prompt + "[[no" + number + "]]");
    }
  }
}

void expect_refused(PreferenceForm form, const std::string& record, const std::vector<std::string>& parts) {
  PairFolder folder;
  write_text(folder / "in/a.jsonl", record + "\n");
  try {
    prepare_corpus(folder.options(form));
    ADD_FAILURE() << "accepted " << record;
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("a.jsonl:1: "), std::string::npos) << message;
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(PreferenceCorpus, BadRecordsAreRefused) {
  const auto text = PreferenceForm::text, messages = PreferenceForm::messages;
  expect_refused(text, R"({"prompt": "a", "chosen": "b"})", {"no 'rejected'", "members are: prompt, chosen"});
  expect_refused(text, R"({"chosen": "b", "rejected": "c"})", {"no 'prompt'"});
  expect_refused(text, R"({"prompt": "a", "chosen": "b", "rejected": "b"})", {"are equal"});
  expect_refused(text, R"({"prompt": "a", "chosen": "b", "rejected": ""})", {"'rejected' is empty"});
  expect_refused(text, R"({"prompt": "a", "chosen": ["b"], "rejected": "c"})", {"--preferences messages"});
  expect_refused(messages, R"({"prompt": "a", "chosen": "b", "rejected": "c"})", {"--preferences text"});
  expect_refused(messages, R"({"chosen": [{"role": "user", "content": "x"}], "rejected": []})",
                 {"'rejected' is empty"});
  expect_refused(messages,
                 R"({"chosen": [{"role": "user", "content": "x"}], "rejected": [{"role": "user", "content": "x"}, )"
                 R"({"role": "assistant", "content": "z"}]})",
                 {"beginning of the other"});
  expect_refused(messages,
                 R"({"prompt": [{"role": "user", "content": "x"}], "chosen": [{"role": "user", "content": "y"}], )"
                 R"("rejected": [{"role": "assistant", "content": "z"}]})",
                 {"'chosen' of this record", "assistant"});
}

// Every row holds whole pairs, every pair is in one row, and the batch names the document of each token.
TEST(PreferenceCorpus, RowsHoldWholePairs) {
  PairFolder folder;
  std::string records;
  for (int i = 0; i < 60; ++i)
    records += str("{\"prompt\": \"", std::string(1 + i % 7, 'p'), "\", \"chosen\": \"", std::string(1 + i % 11, 'c'),
                   "\", \"rejected\": \"", std::string(1 + i % 5, 'r'), "\"}\n");
  write_text(folder / "in/a.jsonl", records);
  prepare_corpus(folder.options(PreferenceForm::text));
  const Corpora corpora = open_corpus(folder / "out.h5");
  const TokenSplit& split = corpora.stores.front()->train();
  for (const std::int64_t group : {7, 1024}) {
    LoaderOptions o{.context = 64, .rows = 2, .prefetch = 0};
    o.packing = {.documents = true, .best_fit = group};
    const ValidationSet rows(corpora, o, 0, Split::train);
    std::vector<int> seen(split.documents());
    for (std::int64_t i = 0; i < rows.batches(); ++i) {
      const Batch b = rows.batch(i);
      ASSERT_EQ(b.documents.size(), b.starts.size());
      for (std::size_t d = 0; d < b.documents.size(); ++d) {
        ++seen[b.documents[d]];
        EXPECT_EQ(b.documents[d] % 2, d % 2);
        if (d % 2 == 1) {
          EXPECT_EQ(b.documents[d], b.documents[d - 1] + 1);
          EXPECT_EQ(b.starts[d], b.starts[d - 1] + b.lengths[d - 1]);
          EXPECT_EQ(b.starts[d] / 64, b.starts[d - 1] / 64);
        }
        const std::uint64_t begin = split.document_start(b.documents[d]);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(b.lengths[d]));
        ASSERT_EQ(ids.size(), split.document_start(b.documents[d] + 1) - begin);
        split.read(begin, ids.size(), ids.data());
        const auto at = static_cast<std::size_t>(b.starts[d]);
        EXPECT_TRUE(std::equal(ids.begin(), ids.end(), b.inputs.begin() + b.starts[d]));
        for (std::size_t t = 0; t < ids.size(); ++t) EXPECT_EQ(b.answers[at + t], static_cast<std::int32_t>(d));
        EXPECT_EQ(b.targets[at + ids.size() - 1], -100);
      }
      std::size_t with_answer = 0, in_documents = 0;
      for (const std::int32_t a : b.answers) with_answer += a >= 0;
      for (const std::int32_t n : b.lengths) in_documents += static_cast<std::size_t>(n);
      EXPECT_EQ(with_answer, in_documents);
    }
    EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
  }
}

TEST(PreferenceCorpus, APairLongerThanARowIsRefused) {
  PairFolder folder;
  write_text(folder / "in/a.jsonl",
             "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"r\"}\n"
             "{\"prompt\": \"12345678\", \"chosen\": \"123\", \"rejected\": \"4567\"}\n");
  prepare_corpus(folder.options(PreferenceForm::text));
  const Corpora corpora = open_corpus(folder / "out.h5");
  const PackingConfig packing{.documents = true, .best_fit = 8};
  EXPECT_EQ(pack_rows(corpora.stores.front()->train(), 31, packing)->rows(), 1u);  // (1+1+1) 2 + (8+3+1) + (8+4+1)
  try {
    pack_rows(corpora.stores.front()->train(), 24, packing);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    const std::string message = e.what();
    for (const char* part : {"out.h5", "pair 1 has 12 tokens", "13 with the rejected", "together 25", "context is 24"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace ring
