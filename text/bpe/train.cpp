#include "text/bpe/train.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>

#include "core/check.h"
#include "text/bpe/description.h"
#include "text/utf8.h"

namespace ring::bpe {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr std::int64_t kMinCount = 2;
constexpr std::int64_t kMinTokens = 257;

using Id = std::int32_t;
using Pair = std::pair<Id, Id>;
using Counts = std::unordered_map<std::string, std::int64_t>;

struct HashPair {
  std::size_t operator()(const Pair& p) const {
    const std::uint64_t key =
        std::uint64_t{static_cast<std::uint32_t>(p.first)} << 32 | static_cast<std::uint32_t>(p.second);
    return static_cast<std::size_t>(key * 0x9E3779B97F4A7C15u >> 20);
  }
};

Counts count_words(const TextSource& source, Pattern pattern) {
  Counts counts;
  const std::unique_ptr<Normalizer> form = pattern == Pattern::qwen2 ? unicode_form(unicode::Form::nfc) : nullptr;
  source([&](std::string_view text) {
    Passage p({text, {}, Start::text});
    if (form && !form->keeps(p.all())) form->apply(p);
    split_by(pattern)->split(p.all(), [&](const TextSlice& word) { ++counts[std::string(word.text)]; });
  });
  return counts;
}

// Pieces and merges. A piece that two different merges produce has a single id.
class Vocabulary {
 public:
  Vocabulary() {
    pieces_.push_back(kEndOfText);
    std::vector<std::pair<char32_t, int>> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(character_of(static_cast<unsigned char>(b)), b);
    std::ranges::sort(bytes);
    for (const auto& [character, byte] : bytes) {
      std::string piece;
      utf8::append(piece, character);
      bytes_[static_cast<std::size_t>(byte)] = number_of(piece);
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  Id of_byte(char byte) const { return bytes_[static_cast<unsigned char>(byte)]; }
  Id merge(const Pair& p) {
    const std::string &left = pieces_[static_cast<std::size_t>(p.first)],
                      &right = pieces_[static_cast<std::size_t>(p.second)];
    merges_.push_back(left + " " + right);
    return number_of(left + right);
  }
  const std::vector<std::string>& pieces() const { return pieces_; }
  const std::vector<std::string>& merges() const { return merges_; }

 private:
  Id number_of(const std::string& piece) {
    const auto [at, added] = numbers_.try_emplace(piece, static_cast<Id>(pieces_.size()));
    if (added) pieces_.push_back(piece);
    return at->second;
  }
  std::vector<std::string> pieces_, merges_;
  std::unordered_map<std::string, Id> numbers_;
  std::array<Id, 256> bytes_{};
};

class Trainer {
 public:
  Trainer(const Counts& counts, Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    for (const auto& [text, count] : counts) add_word(text, count);
    for (const auto& [pair, seen] : pairs_) queue_.push({seen.count, pair});
  }

  void train(std::int64_t size) {
    while (vocabulary_.size() < size && !queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_[top.pair].count;
      if (now != top.count) {
        if (now > 0 && now < top.count) queue_.push({now, top.pair});  // an increased count is already queued
        continue;
      }
      if (now < kMinCount) return;
      merge(top.pair);
    }
  }

 private:
  struct Word {
    std::vector<Id> ids;
    std::int64_t count = 0;
  };
  struct Seen {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // words that contain the pair, and some that no longer do; may repeat
  };
  struct Entry {
    std::int64_t count = 0;
    Pair pair;
    bool operator<(const Entry& o) const { return count != o.count ? count < o.count : pair > o.pair; }
  };

  void add_word(const std::string& text, std::int64_t count) {
    Word w{.ids = {}, .count = count};
    for (const char c : text) w.ids.push_back(vocabulary_.of_byte(c));
    const auto number = static_cast<std::uint32_t>(words_.size());
    for (std::size_t i = 0; i + 1 < w.ids.size(); ++i) see({w.ids[i], w.ids[i + 1]}, count, number);
    words_.push_back(std::move(w));
  }

  void see(const Pair& pair, std::int64_t count, std::uint32_t word) {
    Seen& seen = pairs_[pair];
    seen.count += count;
    if (seen.words.empty() || seen.words.back() != word) seen.words.push_back(word);
  }

  void merge(const Pair& pair) {
    const Id id = vocabulary_.merge(pair);
    std::vector<std::uint32_t> words = std::move(pairs_[pair].words);
    std::ranges::sort(words);
    words.erase(std::unique(words.begin(), words.end()), words.end());
    grown_.clear();
    for (const std::uint32_t w : words) merge_in(w, pair, id);
    for (const auto& [grown, unused] : grown_) queue_.push({pairs_[grown].count, grown});
  }

  void merge_in(std::uint32_t number, const Pair& pair, Id id) {
    Word& w = words_[number];
    std::vector<Id> merged;
    for (std::size_t i = 0; i < w.ids.size(); ++i) {
      const bool here = i + 1 < w.ids.size() && Pair(w.ids[i], w.ids[i + 1]) == pair;
      merged.push_back(here ? id : w.ids[i]);
      i += here;
    }
    if (merged.size() == w.ids.size()) return;
    for (std::size_t i = 0; i + 1 < w.ids.size(); ++i) pairs_[{w.ids[i], w.ids[i + 1]}].count -= w.count;
    for (std::size_t i = 0; i + 1 < merged.size(); ++i) {
      see({merged[i], merged[i + 1]}, w.count, number);
      if (merged[i] == id || merged[i + 1] == id) grown_[{merged[i], merged[i + 1]}] = true;
    }
    w.ids = std::move(merged);
  }

  Vocabulary& vocabulary_;
  std::vector<Word> words_;
  std::unordered_map<Pair, Seen, HashPair> pairs_;
  std::map<Pair, bool> grown_;  // pairs that contain the new token
  std::priority_queue<Entry> queue_;
};

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_of(Pattern pattern) {
  if (pattern == Pattern::gpt2) return byte_level(true);
  const OrderedJson split = {
      {"type", "Split"}, {"pattern", {{"Regex", regex_of(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, byte_level(false)})}};
}

// Returns the entries in brackets, one per line.
template <class Entry>
std::string lines_of(std::size_t count, const char* open, const char* close, Entry entry) {
  std::string out = open;
  for (std::size_t i = 0; i < count; ++i) out += str(i ? ",\n" : "\n", "      ", entry(i));
  return out + "\n    " + close;
}

std::string file_of(const Vocabulary& v, Pattern pattern) {
  const OrderedJson end = {{"id", 0},         {"content", kEndOfText}, {"single_word", false}, {"lstrip", false},
                           {"rstrip", false}, {"normalized", false},   {"special", true}};
  const OrderedJson normalizer = pattern == Pattern::qwen2 ? OrderedJson{{"type", "NFC"}} : OrderedJson();
  const OrderedJson model = {{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", false},
                             {"ignore_merges", false}};
  const auto quoted = [](const std::string& text) { return OrderedJson(text).dump(); };
  std::string settings = model.dump();
  settings.pop_back();  // removes the closing brace, since vocab and merges follow
  return str("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [",
             end.dump(), "],\n  \"normalizer\": ", normalizer.dump(),
             ",\n  \"pre_tokenizer\": ", pre_tokenizer_of(pattern).dump(),
             ",\n  \"post_processor\": ", byte_level(true).dump(), ",\n  \"decoder\": ", byte_level(true).dump(),
             ",\n  \"model\": ", settings, ",\n    \"vocab\": ",
             lines_of(v.pieces().size(), "{", "}", [&](std::size_t i) { return str(quoted(v.pieces()[i]), ": ", i); }),
             ",\n    \"merges\": ",
             lines_of(v.merges().size(), "[", "]", [&](std::size_t i) { return quoted(v.merges()[i]); }), "}\n}\n");
}

}  // namespace

std::shared_ptr<const Tokenizer> train_byte_bpe(const TextSource& source, const TrainOptions& options) {
  if (options.vocab_size < kMinTokens)
    fail("a vocabulary of ", options.vocab_size, " tokens is too small: ", kMinTokens,
         " are needed for the bytes and the end of a text");
  Vocabulary vocabulary;
  Trainer(count_words(source, options.pattern), vocabulary).train(options.vocab_size);
  return json_tokenizer(file_of(vocabulary, options.pattern), "the trained vocabulary");
}

}  // namespace ring::bpe
