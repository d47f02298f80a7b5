// Generated recall tasks, checked by reading the documents: each document assigns new values to its keys.
#include "data/recall.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/data/corpus_case.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

struct RecallCase {
  std::string name;
  RecallOptions options;
};
void PrintTo(const RecallCase& c, std::ostream* out) { *out << c.name; }

RecallOptions of(RecallKind kind, std::int64_t context, std::int64_t vocab, std::int64_t pairs, std::int64_t queries,
                 std::int64_t tail) {
  RecallOptions o;
  o.kind = kind, o.context = context, o.vocab_size = vocab;
  o.pairs = pairs, o.queries = queries, o.tail = tail;
  o.documents = 60, o.validation_documents = 20;
  return o;
}

// Returns the class of a token: noise 'n', key 'k' or value 'v'. Noise gets the remainder of a vocabulary that is not
// divisible by three.
char class_of(std::int32_t token, std::int64_t vocab) {
  const std::int64_t third = vocab / 3;
  return token >= vocab - third ? 'v' : token >= vocab - 2 * third ? 'k' : 'n';
}

struct Pair {
  std::size_t at;
  std::int32_t key, value;
};

// Returns all keys with the values that follow them. Expects that the document has no other keys or values.
std::vector<Pair> pairs_of(const std::vector<std::int32_t>& tokens, std::int64_t vocab) {
  std::vector<Pair> out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (class_of(tokens[i], vocab) == 'n') continue;
    EXPECT_EQ(class_of(tokens[i], vocab), 'k') << "token " << i;
    EXPECT_LT(i + 1, tokens.size());
    EXPECT_EQ(class_of(tokens[i + 1], vocab), 'v') << "token " << i + 1;
    out.push_back({i, tokens[i], tokens[i + 1]});
    ++i;
  }
  return out;
}

class Recall : public testing::TestWithParam<RecallCase> {
 protected:
  const RecallOptions options = resolve_recall_options(GetParam().options);
  std::size_t tail() const { return static_cast<std::size_t>(options.context - options.tail); }

  void check(const std::vector<std::int32_t>& tokens, const std::vector<std::uint8_t>& counts) const {
    const std::vector<Pair> all = pairs_of(tokens, options.vocab_size);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(options.pairs + options.queries));
    std::map<std::int32_t, std::int32_t> value;
    std::set<std::int32_t> asked;
    for (const Pair& p : all) {
      EXPECT_EQ(counts[p.at], 0) << "a key counts";
      if (p.at < tail()) {
        EXPECT_TRUE(value.emplace(p.key, p.value).second) << "a key has two values";
        EXPECT_EQ(counts[p.at + 1], 0) << "a value that cannot be known counts";
        EXPECT_LT(p.at, options.kind == RecallKind::recall ? static_cast<std::size_t>(2 * options.pairs) : tail());
        continue;
      }
      ASSERT_TRUE(value.contains(p.key)) << "a key that was never said is asked for";
      EXPECT_EQ(value.at(p.key), p.value);
      EXPECT_TRUE(asked.insert(p.key).second) << "asked for twice";
      EXPECT_EQ(counts[p.at + 1], 1) << "an answer does not count";
    }
    EXPECT_EQ(std::ranges::count(counts, 1), options.queries);
  }
};

TEST_P(Recall, AnswersMatchEarlierPairs) {
  TempFolder folder;
  RecallOptions o = GetParam().options;
  o.output = folder / "c.h5";
  const PrepareReport report = write_recall_corpus(o);
  const auto store = TokenStore::open(o.output);
  ASSERT_EQ(store->vocab_size(), options.vocab_size);
  const auto length = static_cast<std::size_t>(options.context);
  for (const TokenSplit* split : {&store->train(), &store->validation()}) {
    const std::uint64_t documents = split == &store->train() ? 60 : 20;
    ASSERT_EQ(split->documents(), documents);
    EXPECT_EQ(split->targets(), documents * static_cast<std::uint64_t>(options.queries));
    for (std::uint64_t d = 0; d < documents; ++d) {
      ASSERT_EQ(split->document_start(d), d * length);
      std::vector<std::int32_t> tokens(length);
      std::vector<std::uint8_t> counts(length);
      split->read(d * length, length, tokens.data());
      split->read_mask(d * length, length, counts.data());
      check(tokens, counts);
    }
  }
  EXPECT_EQ(report.bytes, store->train().text_bytes() + store->validation().text_bytes());
}

TEST_P(Recall, TokensDecodeToTextAndBack) {
  TempFolder folder;
  RecallOptions o = GetParam().options;
  o.output = folder / "c.h5";
  write_recall_corpus(o);
  const auto tokenizer = TokenStore::open(o.output)->tokenizer();
  const RecallDocument d = recall_document(options, Split::validation, 3);
  const std::string text = tokenizer->decode(d.tokens);
  EXPECT_EQ(tokenizer->encode(text), d.tokens);
  EXPECT_EQ(text.find(' '), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Tasks, Recall,
                         testing::Values(RecallCase{"recall", of(RecallKind::recall, 64, 48, 8, 8, 0)},
                                         RecallCase{"recall_few_queries", of(RecallKind::recall, 100, 50, 16, 3, 0)},
                                         RecallCase{"recall_spread_queries", of(RecallKind::recall, 128, 48, 8, 8, 70)},
                                         RecallCase{"recall_full", of(RecallKind::recall, 32, 24, 8, 8, 0)},
                                         RecallCase{"needles", of(RecallKind::needles, 200, kMaxSymbols, 4, 4, 0)},
                                         RecallCase{"needles_spread_queries",
                                                    of(RecallKind::needles, 200, 49, 5, 2, 50)},
                                         RecallCase{"needles_without_noise", of(RecallKind::needles, 28, 30, 10, 4, 0)},
                                         RecallCase{"defaults",
                                                    [] {
                                                      RecallOptions o;
                                                      o.documents = 60, o.validation_documents = 20;
                                                      return o;
                                                    }()}),
                         [](const auto& info) { return info.param.name; });

TEST(RecallCorpus, DependsOnlyOnItsOptions) {
  TempFolder folder;
  RecallOptions o = of(RecallKind::needles, 64, 48, 4, 4, 0);
  const auto hashes = [&](const std::string& name) {
    o.output = folder / name;
    write_recall_corpus(o);
    const auto store = TokenStore::open(o.output);
    return std::pair{store->train().tokens_hash(), store->validation().tokens_hash()};
  };
  const auto first = hashes("a.h5");
  EXPECT_EQ(hashes("b.h5"), first);
  o.seed = 2;
  const auto other = hashes("c.h5");
  EXPECT_NE(other.first, first.first);
  EXPECT_NE(other.second, first.second);
  o.documents = 70, o.seed = 1;  // more training documents leave the validation split unchanged
  EXPECT_EQ(hashes("d.h5").second, first.second);
  EXPECT_NE(hashes("e.h5").first, first.first);
}

// Documents of the two splits use different random numbers, whatever the document's number.
TEST(RecallCorpus, TrainingAndValidationAreDrawnSeparately) {
  const RecallOptions o = resolve_recall_options(of(RecallKind::recall, 24, 48, 8, 4, 0));
  std::set<std::vector<std::int32_t>> seen;
  for (std::uint32_t i = 0; i < 500; ++i)
    for (const Split split : {Split::train, Split::validation})
      EXPECT_TRUE(seen.insert(recall_document(o, split, i).tokens).second) << "document " << i << " is there twice";
}

// Expects that each of n equally likely numbers is drawn within five standard deviations of its share.
void expect_even(const std::vector<std::int64_t>& counts, const char* what) {
  std::int64_t all = 0;
  for (const std::int64_t c : counts) all += c;
  const double share = 1.0 / static_cast<double>(counts.size()), n = static_cast<double>(all);
  for (std::size_t i = 0; i < counts.size(); ++i)
    EXPECT_NEAR(static_cast<double>(counts[i]), n * share, 5 * std::sqrt(n * share * (1 - share))) << what << " " << i;
}

TEST(RecallCorpus, OffsetsKeysAndValuesAreUniform) {
  const RecallOptions o = resolve_recall_options(of(RecallKind::needles, 21, 30, 1, 1, 0));
  std::vector<std::int64_t> places(18), keys(10), values(10), noise(10);  // a pair has 18 offsets in 19 tokens
  for (std::uint32_t i = 0; i < 20000; ++i) {
    const RecallDocument d = recall_document(o, Split::train, i);
    const Pair p = pairs_of(d.tokens, o.vocab_size).front();
    ++places[p.at], ++keys[static_cast<std::size_t>(p.key - 10)], ++values[static_cast<std::size_t>(p.value - 20)];
    for (const std::int32_t token : d.tokens)
      if (token < 10) ++noise[static_cast<std::size_t>(token)];
  }
  expect_even(places, "place");
  expect_even(keys, "key");
  expect_even(values, "value");
  expect_even(noise, "noise");
}

TEST(RecallCorpus, PairsAreQueriedUniformly) {
  const RecallOptions o = resolve_recall_options(of(RecallKind::recall, 32, 30, 8, 2, 0));
  std::vector<std::int64_t> asked(8);
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const std::vector<Pair> pairs = pairs_of(recall_document(o, Split::train, i).tokens, o.vocab_size);
    for (std::size_t q = 8; q < pairs.size(); ++q)
      for (std::size_t p = 0; p < 8; ++p) asked[p] += pairs[p].key == pairs[q].key;
  }
  expect_even(asked, "pair");
}

TEST(RecallCorpus, OptionsThatDoNotFitAreNamed) {
  const auto refused = [](const RecallOptions& o, const std::vector<std::string>& parts) {
    expect_error([&] { resolve_recall_options(o); }, parts);
  };
  refused(of(RecallKind::recall, 64, 48, 17, 0, 0), {"--pairs 17", "--vocab-size 48", "at most 16"});
  refused(of(RecallKind::recall, 64, 48, 8, 9, 0), {"--queries 9", "8 pairs"});
  refused(of(RecallKind::recall, 64, 48, 8, 8, 15), {"--tail 15", "at least 16", "8 queries"});
  refused(of(RecallKind::recall, 31, 48, 8, 8, 0), {"--context 31", "at least 32"});
  refused(of(RecallKind::needles, 63, 48, 8, 8, 48), {"--context 63", "at least 64", "48 for the queries"});
  refused(of(RecallKind::recall, 64, 5, 1, 1, 0), {"--vocab-size 5", "at least 6"});
  refused(of(RecallKind::recall, 64, kMaxSymbols + 1, 1, 1, 0), {"--vocab-size 21487"});
  RecallOptions none = of(RecallKind::recall, 64, 48, 8, 8, 0);
  none.documents = 0;
  refused(none, {"--documents 0"});
}

}  // namespace
}  // namespace ring
