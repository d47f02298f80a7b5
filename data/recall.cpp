#include "data/recall.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/philox.h"
#include "text/unicode/categories.h"
#include "text/utf8.h"

namespace ring {
namespace {

// Ranges of visible characters that do not combine: ASCII, Latin letters, unified ideographs.
constexpr std::array<unicode::CharacterRange, 3> kCharacters{{{0x21, 0x7E}, {0xC0, 0x24F}, {0x4E00, 0x9FFF}}};

constexpr std::int64_t characters() {
  std::int64_t n = 0;
  for (const unicode::CharacterRange& c : kCharacters) n += c.last - c.first + 1;
  return n;
}
static_assert(characters() == kMaxSymbols);

// Returns the first `count` symbols, sorted by code point, which is also the order of their tokens.
std::string symbols(std::int64_t count) {
  std::string out;
  for (const unicode::CharacterRange& range : kCharacters)
    for (char32_t c = range.first; c <= range.last && count > 0; ++c, --count) utf8::append(out, c);
  return out;
}

// Thirds of the vocabulary: noise [0, first_key), keys [first_key, first_value) and values from first_value on. There
// are `each` keys and `each` values.
struct Thirds {
  std::int32_t each, first_key, first_value;
  explicit Thirds(std::int64_t vocab)
      : each(static_cast<std::int32_t>(vocab / 3)),
        first_key(static_cast<std::int32_t>(vocab) - 2 * each),
        first_value(first_key + each) {}
};

// Draws the random numbers of one document, one after another.
class Draws {
 public:
  explicit Draws(const RandomSite& site) : site_(site) {}
  // Returns a number in [0, n). All are equally likely, up to a relative error of n / 2^32.
  std::uint32_t below(std::uint64_t n) {
    if (next_ % 4 == 0) block_ = random_block(site_, next_ / 4);
    return static_cast<std::uint32_t>(block_.v[next_++ % 4] * n >> 32);
  }
  // Returns a random subset of `count` numbers of [0, n), sorted; all subsets are equally likely. Each number is taken
  // with probability (numbers still needed) / (numbers left) (Knuth, The Art of Computer Programming 2, 3.4.2,
  // algorithm S).
  std::vector<std::int32_t> subset(std::size_t count, std::int64_t n) {
    std::vector<std::int32_t> out;
    out.reserve(count);
    for (std::int64_t i = 0; out.size() < count; ++i)
      if (below(static_cast<std::uint64_t>(n - i)) < count - out.size()) out.push_back(static_cast<std::int32_t>(i));
    return out;
  }
  void shuffle(std::vector<std::int32_t>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  RandomSite site_;
  std::uint64_t next_ = 0;
  Philox4 block_{};
};

// Returns the sorted positions of `count` non-overlapping pairs of tokens in [begin, end). Draws single
// positions from a range that is shorter by `count`, then widens each to a pair.
std::vector<std::size_t> pair_positions(Draws& draws, std::size_t count, std::int64_t begin, std::int64_t end) {
  std::vector<std::size_t> out;
  for (const std::int32_t cell : draws.subset(count, end - begin - static_cast<std::int64_t>(count)))
    out.push_back(static_cast<std::size_t>(begin + cell) + out.size());
  return out;
}

void check_fit(const RecallOptions& o) {
  const auto at_least = [](const char* option, std::int64_t value, std::int64_t min, const std::string& why) {
    if (value < min) fail(option, " ", value, ": it must be at least ", min, why);
  };
  at_least("--vocab-size", o.vocab_size, 6, ", for two keys and two values");
  if (o.vocab_size > kMaxSymbols) fail("--vocab-size ", o.vocab_size, ": there are only ", kMaxSymbols, " symbols");
  at_least("--documents", o.documents, 1, "");
  at_least("--validation-documents", o.validation_documents, 0, "");
  if (o.pairs > o.vocab_size / 3)
    fail("--pairs ", o.pairs, ": only a third of --vocab-size ", o.vocab_size, " can be keys. Use at most ",
         o.vocab_size / 3, " pairs, or a larger vocabulary");
  if (o.queries > o.pairs) fail("--queries ", o.queries, ": there are only ", o.pairs, " pairs to query (--pairs)");
  at_least("--tail", o.tail, 2 * o.queries, str(", two tokens for each of ", o.queries, " queries"));
  at_least("--context", o.context, 2 * o.pairs + o.tail,
           str(": ", o.pairs, " pairs of two tokens, and ", o.tail, " for the queries"));
}

}  // namespace

RecallOptions resolve_recall_options(RecallOptions o) {
  if (o.pairs == 0) o.pairs = o.kind == RecallKind::recall ? 32 : 4;
  if (o.queries == 0) o.queries = o.pairs;
  if (o.tail == 0) o.tail = 2 * o.queries;
  check_fit(o);
  return o;
}

RecallDocument recall_document(const RecallOptions& o, Split split, std::uint32_t number) {
  const Thirds vocab(o.vocab_size);
  Draws draws({o.seed, number, site_of(split == Split::train ? "recall/train" : "recall/validation")});
  RecallDocument d{std::vector<std::int32_t>(static_cast<std::size_t>(o.context)), {}};
  for (std::int32_t& token : d.tokens) token = static_cast<std::int32_t>(draws.below(vocab.first_key));

  const auto pairs = static_cast<std::size_t>(o.pairs), queries = static_cast<std::size_t>(o.queries);
  std::vector<std::int32_t> keys = draws.subset(pairs, vocab.each), values(pairs), asked(pairs);
  draws.shuffle(keys);
  for (std::int32_t& value : values) value = static_cast<std::int32_t>(draws.below(vocab.each));
  std::iota(asked.begin(), asked.end(), 0);
  draws.shuffle(asked);

  const auto put = [&](std::size_t at, std::size_t pair) {
    d.tokens[at] = vocab.first_key + keys[pair];
    d.tokens[at + 1] = vocab.first_value + values[pair];
  };
  const std::int64_t tail_begin = o.context - o.tail;
  const std::int64_t pairs_end = o.kind == RecallKind::recall ? 2 * o.pairs : tail_begin;
  for (std::size_t pair = 0; const std::size_t at : pair_positions(draws, pairs, 0, pairs_end)) put(at, pair++);
  for (const std::size_t at : pair_positions(draws, queries, tail_begin, o.context)) {
    put(at, static_cast<std::size_t>(asked[d.answers.size()]));
    d.answers.push_back(at + 1);
  }
  return d;
}

namespace {

// Appends documents to a corpus; the UTF-8 bytes of their symbols count as text bytes.
class Appender {
 public:
  Appender(TokenStoreWriter& writer, const Tokenizer& tokenizer) : writer_(writer) {
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) bytes_.push_back(tokenizer.bytes_of(id).size());
  }
  void document(Split split, const RecallDocument& d) {
    writer_.begin_document(split);
    std::span<const std::int32_t> rest = d.tokens;
    for (std::size_t done = 0; const std::size_t answer : d.answers) {
      append(split, rest.first(answer - done), /*is_answer=*/false);
      append(split, rest.subspan(answer - done, 1), /*is_answer=*/true);
      rest = rest.subspan(answer - done + 1);
      done = answer + 1;
    }
    append(split, rest, /*is_answer=*/false);
  }
  std::uint64_t bytes() const { return all_; }

 private:
  // Appends tokens; only answers count as targets.
  void append(Split split, std::span<const std::int32_t> tokens, bool is_answer) {
    if (tokens.empty()) return;
    std::uint64_t bytes = 0;
    for (const std::int32_t id : tokens) bytes += bytes_[static_cast<std::size_t>(id)];
    writer_.append(split, tokens, is_answer);
    writer_.add_text_bytes(split, bytes, is_answer);
    all_ += bytes;
  }
  TokenStoreWriter& writer_;
  std::vector<std::uint64_t> bytes_;
  std::uint64_t all_ = 0;
};

std::string source_of(const RecallOptions& o) {
  return str(o.kind == RecallKind::recall ? "recall" : "needles", ": ", o.pairs, " pairs and ", o.queries,
             " queries in the last ", o.tail, " of ", o.context, " tokens; seed ", o.seed);
}

}  // namespace

PrepareReport write_recall_corpus(const RecallOptions& options) {
  const RecallOptions o = resolve_recall_options(options);
  PrepareReport report;
  report.tokenizer = chars_tokenizer(symbols(o.vocab_size));
  TokenStoreWriter writer(o.output, o.vocab_size, /*masked=*/true);
  Appender appender(writer, *report.tokenizer);
  for (const Split split : {Split::train, Split::validation}) {
    const std::int64_t count = split == Split::train ? o.documents : o.validation_documents;
    for (std::int64_t i = 0; i < count; ++i)
      appender.document(split, recall_document(o, split, static_cast<std::uint32_t>(i)));
    const auto s = static_cast<std::size_t>(split);
    report.tokens[s] = writer.tokens(split);
    report.documents[s] = writer.documents(split);
    report.targets[s] = writer.targets(split);
  }
  report.bytes = appender.bytes();
  writer.finish(*report.tokenizer, source_of(o));
  return report;
}

}  // namespace ring
